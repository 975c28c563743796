// Random orders of leases against what every plan must keep.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "runtime/step_plan.h"

using namespace tessera;
using namespace tessera::runtime;

namespace {

struct Case {
  std::vector<LeaseEvent> events;
  PlanLimits limits;
};

// Leases nest no deeper than the slots.
Case random_case(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Case c;
  const int units = 1 + below(7);
  c.limits.slots = 1 + below(3);
  c.limits.prefetch = below(4);
  for (int u = 0; u < units; ++u) {
    c.limits.gathers.push_back(below(5) > 0);
    c.limits.own_slot.push_back(below(4) == 0);
  }
  std::vector<UnitId> live;
  const int length = below(40);
  for (int i = 0; i < length; ++i) {
    const UnitId u(below(units));
    const bool is_live = std::find(live.begin(), live.end(), u) != live.end();
    if (!is_live && static_cast<int>(live.size()) < c.limits.slots) {
      c.events.push_back({LeaseEvent::Kind::open, u});
      live.push_back(u);
    } else if (!live.empty()) {
      const auto at = live.begin() + below(static_cast<int>(live.size()));
      c.events.push_back({LeaseEvent::Kind::close, *at});
      live.erase(at);
    }
  }
  for (const UnitId u : live) c.events.push_back({LeaseEvent::Kind::close, u});
  return c;
}

}  // namespace

TEST_CASE(
    "plan: for any order of leases, slots are never exceeded, live units never released, every gather has one release, events keep their "
    "order") {
  std::mt19937 random(20261201);
  for (int round = 0; round < 3000; ++round) {
    const Case c = random_case(random);
    const StepPlan plan = build_plan(c.events, c.limits);
    std::vector<bool> held(c.limits.gathers.size(), false), live(c.limits.gathers.size(), false);
    int in_pool = 0;
    std::vector<LeaseEvent> events;
    const auto take = [&](std::size_t u) {
      held[u] = true;
      if (!c.limits.own_slot[u]) ++in_pool;
    };
    for (const PlanStep& s : plan.steps) {
      const auto u = static_cast<std::size_t>(s.unit.value);
      REQUIRE(c.limits.gathers[u]);
      if (s.kind == PlanStep::Kind::gather) {
        REQUIRE_FALSE(held[u]);
        take(u);
      } else if (s.kind == PlanStep::Kind::release) {
        REQUIRE(held[u]);
        REQUIRE_FALSE(live[u]);
        held[u] = false;
        if (!c.limits.own_slot[u]) --in_pool;
      } else if (s.kind == PlanStep::Kind::open) {
        if (!held[u]) {
          REQUIRE(c.limits.prefetch == 0);  // with prefetch every unit is there when it is leased
          take(u);
        }
        live[u] = true;
        events.push_back({LeaseEvent::Kind::open, s.unit});
      } else {
        live[u] = false;
        events.push_back({LeaseEvent::Kind::close, s.unit});
      }
      REQUIRE(in_pool <= c.limits.slots);
    }
    for (const bool h : held) REQUIRE_FALSE(h);
    std::vector<LeaseEvent> expected;
    for (const LeaseEvent& e : c.events)
      if (c.limits.gathers[static_cast<std::size_t>(e.unit.value)]) expected.push_back(e);
    REQUIRE(events == expected);
    REQUIRE(build_plan(c.events, c.limits) == plan);
  }
}
