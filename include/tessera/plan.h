// What an engine is going to do, as data: computed by pure functions from spec and options, before anything is allocated or sent.
// Plans can be printed, compared and fuzzed; the executor follows them and holds no policy of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/memory.h"
#include "tessera/model_spec.h"
#include "tessera/options.h"
#include "tessera/types.h"

namespace tessera {

/// One line of a plan. Lines that follow an expected event are carried out when that event happens; those before the first, when the scope
/// opens.
struct PlanStep {
  enum class Kind : std::uint8_t {
    open,     ///< expected event: the caller leases the unit's parameters
    close,    ///< expected event: the last lease of the unit ends
    gather,   ///< start gathering the unit into a slot
    release,  ///< the unit's slot is free
  };
  Kind kind{};
  UnitId unit{};
  friend bool operator==(const PlanStep&, const PlanStep&) = default;
};

/// Gathers and releases of one leaf (or of one evaluation scope).
struct StepPlan {
  std::vector<PlanStep> steps;
  std::string text(const ModelSpec& spec) const;  ///< one line each, "gather h.3"
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

/// What a plan needs to know of the transport.
struct TransportTraits {
  int ranks = 1;
  bool full_flat_addressable = false;  ///< Communicator::full_flat_addressable()
  Bytes scratch{};                     ///< Communicator::scratch_bytes(ranks)
};

/// Bytes of one rank, before anything is allocated. On host transports MemoryLedger's peak equals it to the byte, as long as the caller
/// keeps to the declared uses and micro-batches.
struct MemoryForecast {
  MemoryBytes bytes;
  int parameter_slots = 0;  ///< pool slots, after the budget
  int gradient_slots = 0;
  std::vector<std::string> decisions;  ///< what was chosen automatically, and why
};

/// Pure. Throws UsageError where the budget cannot be kept, with the smallest that would do.
MemoryForecast forecast_memory(const ModelSpec& spec, const Options& options, const TransportTraits& transport);

}  // namespace tessera
