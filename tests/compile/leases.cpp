// What a lease shows cannot outlive it, and parameters cannot be written through it.
#include "tessera/engine.h"

using namespace tessera;

void use(Engine& engine, UnitId unit);
void use(Engine& engine, UnitId unit) {
  const ParameterLease weights = engine.gather(unit);
  const GradientLease gradients = engine.gradients(unit);
  gradients["w"][0] += weights["w"][0] + weights.view<float>("w")[0];

#ifdef CASE_VIEW_OF_TEMPORARY_LEASE  // error: deleted (function|operator)
  auto view = engine.gather(unit)["w"];
#endif
#ifdef CASE_TYPED_VIEW_OF_TEMPORARY_LEASE  // error: deleted (member )?function
  auto view = engine.gather(unit).view<float>("w");
#endif
#ifdef CASE_GRADIENT_OF_TEMPORARY_LEASE  // error: deleted (function|operator)
  engine.gradients(unit)["w"][0] += 1.0f;
#endif
#ifdef CASE_WRITE_TO_PARAMETERS  // error: (read-only|const-qualified|not assignable)
  weights["w"][0] = 1.0f;
#endif
#ifdef CASE_LEASE_DROPPED_AT_ONCE  // error: (nodiscard|ignoring return value)
  engine.gather(unit);
#endif
#ifdef CASE_LEASE_COPIED  // error: (deleted|no matching constructor|implicitly deleted)
  ParameterLease copy = weights;
#endif
#ifdef CASE_MICRO_BATCH_DROPPED_AT_ONCE  // error: (nodiscard|ignoring return value)
  engine.micro_batch();
#endif
#ifdef CASE_UNIT_BY_NUMBER  // error: (convert|conversion|matching|viable)
  auto lease = engine.gather(0);
#endif
}
