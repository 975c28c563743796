#include "runtime/step_plan.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace tessera::runtime {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// Walks the events once, holding what a slot holds at that moment.
class Planner {
 public:
  Planner(const std::vector<LeaseEvent>& events, const PlanLimits& limits)
      : events_(events), limits_(limits), held_(limits.gathers.size(), false), live_(limits.gathers.size(), false) {}

  StepPlan run() {
    look_ahead(0);
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const UnitId unit = events_[i].unit;
      if (!limits_.gathers[index(unit)]) continue;  // whole on every rank: nothing to plan
      const bool open = events_[i].kind == LeaseEvent::Kind::open;
      if (open && needs_gather(unit)) take(unit, i, When::at_open);
      emit(open ? PlanStep::Kind::open : PlanStep::Kind::close, unit);
      live_[index(unit)] = open;
      if (!open && next_open(unit, i + 1) == kNever) release(unit);
      look_ahead(i + 1);
    }
    return plan_;
  }

 private:
  static std::size_t index(UnitId u) { return static_cast<std::size_t>(u.value); }
  bool needs_gather(UnitId u) const { return limits_.gathers[index(u)] && !held_[index(u)]; }

  std::size_t next_open(UnitId unit, std::size_t from) const {
    for (std::size_t i = from; i < events_.size(); ++i)
      if (events_[i].kind == LeaseEvent::Kind::open && events_[i].unit == unit) return i;
    return kNever;
  }

  void emit(PlanStep::Kind kind, UnitId unit) { plan_.steps.push_back({kind, unit}); }

  void release(UnitId unit) {
    emit(PlanStep::Kind::release, unit);
    held_[index(unit)] = false;
    if (!limits_.own_slot[index(unit)]) --in_pool_;
  }

  enum class When { ahead, at_open };  // at the lease itself nothing need be planned: the executor gathers what is not there

  void gather(UnitId unit, When when) {
    if (when == When::ahead) emit(PlanStep::Kind::gather, unit);
    held_[index(unit)] = true;
    if (!limits_.own_slot[index(unit)]) ++in_pool_;
  }

  // Gathers `unit`, needed at event `needed`, if a slot can be had without giving up something needed sooner.
  bool take(UnitId unit, std::size_t needed, When when) {
    if (!limits_.own_slot[index(unit)] && in_pool_ >= limits_.slots) {
      UnitId victim = kNoUnit;
      std::size_t farthest = needed;
      for (std::size_t u = 0; u < held_.size(); ++u) {
        if (!held_[u] || live_[u] || limits_.own_slot[u]) continue;
        const std::size_t next = next_open(UnitId(static_cast<int>(u)), now_);
        if (next > farthest) farthest = next, victim = UnitId(static_cast<int>(u));
      }
      if (victim == kNoUnit) return false;
      release(victim);
    }
    gather(unit, when);
    return true;
  }

  // Starts the gathers of the next `prefetch` units that the caller will open after event `from`; in order, so that none overtakes a sooner
  // one.
  void look_ahead(std::size_t from) {
    now_ = from;
    int ahead = 0;
    std::vector<UnitId> seen;
    for (std::size_t i = from; i < events_.size() && ahead < limits_.prefetch; ++i) {
      if (events_[i].kind != LeaseEvent::Kind::open) continue;
      const UnitId unit = events_[i].unit;
      if (!limits_.gathers[index(unit)] || live_[index(unit)] || std::find(seen.begin(), seen.end(), unit) != seen.end()) continue;
      seen.push_back(unit);
      ++ahead;
      if (needs_gather(unit) && !take(unit, i, When::ahead)) return;
    }
  }

  const std::vector<LeaseEvent>& events_;
  const PlanLimits& limits_;
  std::vector<bool> held_, live_;
  std::size_t now_ = 0;  // events before it have happened
  int in_pool_ = 0;
  StepPlan plan_;
};

}  // namespace

std::vector<LeaseEvent> expected_events(const std::vector<UnitId>& forward) {
  std::vector<LeaseEvent> events;
  const auto use = [&](UnitId u) {
    events.push_back({LeaseEvent::Kind::open, u});
    events.push_back({LeaseEvent::Kind::close, u});
  };
  for (const UnitId u : forward) use(u);
  for (auto it = forward.rbegin(); it != forward.rend(); ++it) use(*it);
  return events;
}

StepPlan build_plan(const std::vector<LeaseEvent>& events, const PlanLimits& limits) { return Planner(events, limits).run(); }

}  // namespace tessera::runtime

namespace tessera {

std::string StepPlan::text(const ModelSpec& spec) const {
  constexpr std::string_view verbs[] = {"open", "close", "gather", "release"};
  std::string out;
  for (const PlanStep& s : steps) out += fmt::format("{} {}\n", verbs[static_cast<int>(s.kind)], spec[s.unit].name);
  return out;
}

}  // namespace tessera
