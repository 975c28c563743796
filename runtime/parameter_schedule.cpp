#include "runtime/parameter_schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/planted_fault.h"
#include "runtime/poison.h"
#include "tessera/error.h"

namespace tessera::runtime {

ParameterSchedule::ParameterSchedule(Context& context, Storage& storage)
    : context_(context), storage_(storage), units_(context.spec().units().size()) {
  const MemoryForecast& forecast = storage.placement().forecast;
  limits_.slots = forecast.parameter_slots;
  limits_.prefetch = context.options().prefetch;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitPlacement& placement = storage.unit(UnitId(static_cast<int>(u)));
    limits_.gathers.push_back(placement.parameter_slot > Bytes(0));
    shared_.push_back(std::any_of(placement.segments.begin(), placement.segments.end(), [](const auto& s) { return s.parameters_shared; }));
    limits_.own_slot.push_back(placement.own_parameter_slot);
    if (!limits_.gathers.back()) units_[u].state = ParameterState::gathered;  // whole, or all shards addressable, for ever
  }
  const std::vector<UnitId>& order = context.spec().order();
  if (!order.empty()) {
    plans_.by_scope[0] = build_plan(expected_events(order), limits_);
    std::vector<LeaseEvent> forward = expected_events(order);
    forward.resize(forward.size() / 2);
    plans_.by_scope[1] = build_plan(forward, limits_);
    plans_.known[0] = plans_.known[1] = true;
    kept_ = plans_;
  }
}

void ParameterSchedule::open_scope(ScopeKind kind) {
  scope_ = kind;
  scope_open_ = true;
  cursor_ = 0;
  missed_ = false;
  observed_.clear();
  carry_out();
}

void ParameterSchedule::close_scope() {
  const auto k = static_cast<std::size_t>(scope_);
  if (missed_ || !plans_.known[k] || cursor_ < plans_.by_scope[k].steps.size()) {
    plans_.by_scope[k] = build_plan(observed_, limits_);
    plans_.known[k] = true;
  }
  abandon_scope();
}

void ParameterSchedule::abandon_scope() {
  scope_open_ = false;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (limits_.gathers[u] && units_[u].leases == 0 && units_[u].state != ParameterState::sharded) release(UnitId(static_cast<int>(u)));
}

void ParameterSchedule::open(UnitId unit) {
  UnitParameters& p = units_[index(unit)];
  if (p.leases == 0) {
    if (p.state == ParameterState::sharded) start_gather(unit, *slot_for_lease(unit));
    if (p.state == ParameterState::gathering) arrive(unit);
    p.state = next(p.state, ParameterEvent::lease);
  }
  ++p.leases;
  if (p.slot != nullptr) p.slot->last_used = ++clock_;
  if (p.leases > 1) return;
  if (shared_[index(unit)]) order_ = (order_ ^ (static_cast<std::uint64_t>(unit.value) + 1)) * 0x100000001b3ull;
  if (!gathers(unit)) return;
  try {
    follow({LeaseEvent::Kind::open, unit});
  } catch (...) {
    close(unit, false);
    throw;
  }
}

void ParameterSchedule::close(UnitId unit, bool follow_plan) {
  UnitParameters& p = units_[index(unit)];
  if (--p.leases > 0) return;
  p.state = next(p.state, ParameterEvent::close);
  if (!gathers(unit)) return;
  if (!scope_open_) release(unit);
  else if (follow_plan) follow({LeaseEvent::Kind::close, unit});
}

void ParameterSchedule::follow(LeaseEvent event) {
  if (!scope_open_) return;
  observed_.push_back(event);
  if (!plans_.known[static_cast<std::size_t>(scope_)]) return;
  const bool is_open = event.kind == LeaseEvent::Kind::open;
  const PlanStep wanted{is_open ? PlanStep::Kind::open : PlanStep::Kind::close, event.unit};
  const std::vector<PlanStep>& steps = plans_.by_scope[static_cast<std::size_t>(scope_)].steps;
  auto at = steps.begin() + static_cast<std::ptrdiff_t>(cursor_);
  if (at == steps.end() || !(*at == wanted)) {
    missed_ = true;
    if (!is_open) return;
    ++context_.misses;
    // Units may have been skipped: go on where the plan expects this one, if it still does.
    at = std::find(at, steps.end(), wanted);
    if (at == steps.end()) return;
  }
  cursor_ = static_cast<std::size_t>(at - steps.begin()) + 1;
  carry_out();
}

void ParameterSchedule::carry_out() {
  const std::vector<PlanStep>& steps = plans_.by_scope[static_cast<std::size_t>(scope_)].steps;
  for (; cursor_ < steps.size(); ++cursor_) {
    const PlanStep& s = steps[cursor_];
    UnitParameters& p = units_[index(s.unit)];
    if (s.kind == PlanStep::Kind::release) {
      if (p.leases == 0 && p.state != ParameterState::sharded) release(s.unit);
    } else if (s.kind == PlanStep::Kind::gather) {
      Slot* slot = p.state == ParameterState::sharded ? free_slot(s.unit) : nullptr;
      if (slot != nullptr) start_gather(s.unit, *slot);
    } else {
      return;
    }
  }
}

Slot* ParameterSchedule::free_slot(UnitId unit) {
  if (Slot* own = storage_.own_parameter_slot(unit)) return own;
  for (Slot& slot : storage_.parameter_pool())
    if (slot.holder == kNoUnit) return &slot;
  return nullptr;
}

Slot* ParameterSchedule::slot_for_lease(UnitId unit) {
  if (Slot* slot = free_slot(unit)) return slot;
  Slot* oldest = nullptr;
  for (Slot& slot : storage_.parameter_pool())
    if (units_[index(slot.holder)].leases == 0 && (oldest == nullptr || slot.last_used < oldest->last_used)) oldest = &slot;
  if (oldest == nullptr)
    throw UsageError(
        fmt::format("unit '{}' cannot be gathered: all {} parameter slots are taken by live leases of {}; end one of them first, or raise "
                    "Options::parameter_slots (now {}) or the memory budget",
                    context_.name(unit), storage_.parameter_pool().size(), live_leases(), context_.options().parameter_slots));
  release(oldest->holder);
  return oldest;
}

void ParameterSchedule::start_gather(UnitId unit, Slot& slot) {
  UnitParameters& p = units_[index(unit)];
  const UnitPlacement& placement = storage_.unit(unit);
  p.state = next(p.state, ParameterEvent::gather);
  p.slot = &slot;
  slot.holder = unit;
  slot.last_used = ++clock_;
  for (std::size_t i = 0; i < placement.segments.size(); ++i) {
    const SegmentPlacement& s = placement.segments[i];
    if (s.parameters_whole || s.parameters_shared) continue;
    const Region full{slot.buffer.data() + s.parameter_offset.value, slot.buffer.owner()};
    const Region own = storage_.owned_parameters(unit, i);
    slot.pending.push_back(context_.communicator().all_gather({own.data, own.owner}, full, s.share, s.dtype,
                                                              context_.label(Channel::gather, unit, static_cast<int>(i)),
                                                              context_.stream(Channel::gather)));
  }
}

void ParameterSchedule::arrive(UnitId unit) {
  UnitParameters& p = units_[index(unit)];
  if (!core::planted(core::Fault::skipped_wait)) {
    for (Pending& pending : p.slot->pending) context_.wait(pending, "wait gather", unit);
    p.slot->pending.clear();
  }
  p.state = next(p.state, ParameterEvent::arrive);
}

void ParameterSchedule::release(UnitId unit) {
  UnitParameters& p = units_[index(unit)];
  p.slot->pending.clear();  // waits for a gather that nobody came for, unless it failed
  poison(p.slot->buffer.data(), storage_.unit(unit).parameter_slot);
  p.slot->holder = kNoUnit;
  p.slot = nullptr;
  p.state = next(p.state, ParameterEvent::release);
}

const std::byte* ParameterSchedule::data(UnitId unit, std::size_t segment) const {
  const SegmentPlacement& s = storage_.unit(unit).segments[segment];
  if (const std::byte* full = storage_.segment(unit, segment).full_parameters) return full;
  return units_[index(unit)].slot->buffer.data() + s.parameter_offset.value;
}

int ParameterSchedule::leases() const {
  int n = 0;
  for (const UnitParameters& p : units_) n += p.leases;
  return n;
}

std::string ParameterSchedule::live_leases() const {
  std::string names;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].leases > 0) names += (names.empty() ? "'" : ", '") + context_.name(UnitId(static_cast<int>(u))) + "'";
  return names;
}

std::vector<UnitId> ParameterSchedule::gathered() const {
  std::vector<UnitId> units;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (limits_.gathers[u] && units_[u].leases == 0 && units_[u].state != ParameterState::sharded)
      units.push_back(UnitId(static_cast<int>(u)));
  return units;
}

void ParameterSchedule::drop_all() {
  for (const UnitId unit : gathered()) release(unit);
}

}  // namespace tessera::runtime
