// From an order of leases to a plan of gathers and releases: which unit to gather when, and which to give up for it. Pure.
//
// The rule is Belady's, looking only as far ahead as the prefetch depth: before the caller needs a unit it is gathered, if a slot is free
// or holds a unit that is needed later than it; what is needed again before its slot is wanted stays.
#pragma once

#include <vector>

#include "tessera/model_spec.h"
#include "tessera/plan.h"
#include "tessera/types.h"

namespace tessera::runtime {

/// A lease of a unit begins, or its last one ends.
struct LeaseEvent {
  enum class Kind : std::uint8_t { open, close };
  Kind kind{};
  UnitId unit{};
  friend bool operator==(const LeaseEvent&, const LeaseEvent&) = default;
};

/// What bounds a plan.
struct PlanLimits {
  int slots = 2;               ///< pool slots
  int prefetch = 1;            ///< units ahead of the caller
  std::vector<bool> gathers;   ///< by unit: has anything to gather
  std::vector<bool> own_slot;  ///< by unit: does not use the pool, stays from first to last use
};

/// The events of one leaf of a program that follows `forward` and then its reverse, each unit leased alone.
std::vector<LeaseEvent> expected_events(const std::vector<UnitId>& forward);

StepPlan build_plan(const std::vector<LeaseEvent>& events, const PlanLimits& limits);

}  // namespace tessera::runtime
