#include "runtime/gradient_schedule.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/planted_fault.h"
#include "tessera/error.h"

namespace tessera::runtime {
namespace {

void zero(float* data, Elements n) {
  if (!core::planted(core::Fault::stale_slot)) std::memset(data, 0, static_cast<std::size_t>(to_bytes(n, DType::f32).value));
}

}  // namespace

GradientSchedule::GradientSchedule(Context& context, Storage& storage)
    : context_(context), storage_(storage), units_(context.spec().units().size()) {
  reductions_.assign(units_.size(), 0);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::size_t tensors = context.spec().units()[u].tensors.size();
    units_[u].given.assign(tensors, false);
    units_[u].touched.assign(tensors, false);
  }
}

GradientTarget GradientSchedule::open(UnitId unit) {
  UnitGradients& g = units_[index(unit)];
  GradientTarget target;
  target.given.assign(g.given.size(), false);
  if (g.opened < uses(unit) && !g.submitted) {
    if (g.opened == 0) begin(unit);
    ++g.opened;
    target.slot = g.slot;
  } else {
    if (context_.spec()[unit].optional)
      throw UsageError(fmt::format(
          "optional unit '{}' has more than its {} declared gradient leases in a leaf (other ranks could not know); declare uses({})",
          context_.name(unit), uses(unit), uses(unit) + 1));
    target.extra = g.extras_opened;
    target.slot = extra_slot(unit, target.extra);
    ++g.extras_opened;
    ++context_.misses;
    for (std::size_t i = 0; i < storage_.unit(unit).segments.size(); ++i)
      if (storage_.unit(unit).segments[i].trainable) zero(data(unit, i, target), storage_.unit(unit).segments[i].full);
  }
  ++g.live;
  return target;
}

void GradientSchedule::begin(UnitId unit) {
  UnitGradients& g = units_[index(unit)];
  const UnitPlacement& placement = storage_.unit(unit);
  settle(unit);  // its own reduction of the leaf before
  if (placement.gradient_slot > Bytes(0)) {
    Slot* own = storage_.own_gradient_slot(unit);
    if (own != nullptr) settle(*own);
    g.slot = own != nullptr ? own : pool_slot(unit);
    g.slot->holder = unit;
    g.slot->held = true;
    g.slot->last_used = ++clock_;
  }
  g.state = next(g.state, GradientEvent::open);
  GradientTarget target;
  target.slot = g.slot;
  for (std::size_t i = 0; i < placement.segments.size(); ++i)
    if (placement.segments[i].trainable) zero(data(unit, i, target), placement.segments[i].full);
}

float* GradientSchedule::data(UnitId unit, std::size_t segment, const GradientTarget& target) {
  const SegmentPlacement& s = storage_.unit(unit).segments[segment];
  const auto at = [](const Buffer& b, Bytes offset) { return reinterpret_cast<float*>(b.data() + offset.value); };
  if (target.extra >= 0) return at(target.slot->buffer, s.extra_offset);
  if (s.gradients_whole) return at(storage_.segment(unit, segment).gradients, Bytes(0));
  return at(target.slot->buffer, s.gradient_offset);
}

void GradientSchedule::close(UnitId unit, const GradientTarget& target) {
  UnitGradients& g = units_[index(unit)];
  --g.live;
  if (target.extra >= 0) {
    submit_extra(unit, target);
    return;
  }
  for (std::size_t t = 0; t < g.given.size(); ++t)
    if (target.given[t]) g.given[t] = true;
  ++g.closed;
  if (g.closed == uses(unit) && !context_.spec()[unit].optional) submit(unit);
}

void GradientSchedule::drop(UnitId unit, const GradientTarget&) { --units_[index(unit)].live; }

void GradientSchedule::settle(Slot& slot) {
  for (Pending& p : slot.pending) context_.wait(p, "wait reduce", slot.holder);
  slot.pending.clear();
}

void GradientSchedule::settle(UnitId unit) {
  UnitGradients& g = units_[index(unit)];
  for (Pending& p : g.pending) context_.wait(p, "wait reduce", unit);
  g.pending.clear();
  if (g.slot != nullptr && g.slot->holder == unit && !g.slot->held) settle(*g.slot);
  if (g.state == GradientState::reducing) g.state = next(g.state, GradientEvent::finish);
}

Slot* GradientSchedule::pool_slot(UnitId unit) {
  Slot* oldest = nullptr;
  for (Slot& slot : storage_.gradient_pool())
    if (!slot.held && (oldest == nullptr || slot.last_used < oldest->last_used)) oldest = &slot;
  if (oldest == nullptr)
    throw UsageError(fmt::format(
        "unit '{}' cannot take gradients: all {} gradient slots are taken by live gradient leases of {}; end one of them first, or raise "
        "Options::gradient_slots (now {}) or the memory budget",
        context_.name(unit), storage_.gradient_pool().size(), live_leases(), context_.options().gradient_slots));
  settle(*oldest);
  return oldest;
}

Slot* GradientSchedule::extra_slot(UnitId unit, int extra) {
  UnitGradients& g = units_[index(unit)];
  const UnitPlacement& placement = storage_.unit(unit);
  if (static_cast<std::size_t>(extra) == g.extras.size()) {
    const std::string what = fmt::format("gradient lease {} of unit '{}' in a leaf (uses({}) is declared)", uses(unit) + extra + 1,
                                         context_.name(unit), uses(unit));
    Extra further;
    for (const SegmentPlacement& s : placement.segments)
      further.shares.push_back(
          s.trainable ? storage_.extra(to_bytes(s.share, DType::f32), Category::gradients, context_.options().memory_budget, what)
                      : Buffer());
    g.extras.push_back(std::move(further));
  }
  Slot* slot = nullptr;
  if (placement.extra_slot <= storage_.placement().gradient_pool_slot)
    for (Slot& s : storage_.gradient_pool())
      if (!s.held && (slot == nullptr || s.last_used < slot->last_used)) slot = &s;
  if (slot == nullptr) {
    for (Slot& s : g.extra_slots)
      if (!s.held) slot = &s;
    if (slot == nullptr) {
      if (g.extra_slots.capacity() == 0) g.extra_slots.reserve(16);  // targets point into it
      if (g.extra_slots.size() == g.extra_slots.capacity())
        throw UsageError(fmt::format("more than {} gradient leases of unit '{}' beyond its {} declared uses are alive at once",
                                     g.extra_slots.size(), context_.name(unit), uses(unit)));
      const std::string what = fmt::format("a gradient slot for unit '{}' beyond its {} declared uses", context_.name(unit), uses(unit));
      Slot own;
      own.buffer = storage_.extra(placement.extra_slot, Category::full_gradients, context_.options().memory_budget, what);
      g.extra_slots.push_back(std::move(own));
      slot = &g.extra_slots.back();
    }
  }
  settle(*slot);
  slot->holder = unit;
  slot->held = true;
  slot->last_used = ++clock_;
  return slot;
}

std::uint64_t GradientSchedule::fingerprint(const std::vector<bool>& given) const {
  std::uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  for (const bool b : given) h = (h ^ (b ? 1u : 0u)) * 0x100000001b3ull;
  return h;
}

void GradientSchedule::submit(UnitId unit) {
  UnitGradients& g = units_[index(unit)];
  const UnitPlacement& placement = storage_.unit(unit);
  g.submitted = true;
  g.state = next(g.state, GradientEvent::reduce);
  if (g.slot != nullptr) g.slot->held = false;
  const bool lost = core::planted(core::Fault::lost_micro_batch) && context_.options().micro_batches > 1 &&
                    context_.leaf == context_.options().micro_batches - 1;
  const Fold fold = g.in_sum ? Fold::onward : Fold::start;
  GradientTarget target;
  target.slot = g.slot;
  for (std::size_t i = 0; i < placement.segments.size(); ++i) {
    const SegmentPlacement& s = placement.segments[i];
    if (!s.trainable || lost) continue;
    const Buffer& source = s.gradients_whole ? storage_.segment(unit, i).gradients : g.slot->buffer;
    std::vector<Pending>& pending = s.gradients_whole ? g.pending : g.slot->pending;
    pending.push_back(context_.communicator().reduce_scatter(
        {data(unit, i, target), source.owner()}, storage_.owned_gradients(unit, i), s.share, DType::f32, fold,
        context_.label(Channel::reduce, unit, static_cast<int>(i), fingerprint(g.given)), context_.stream(Channel::reduce)));
  }
  g.in_sum = true;
  ++reductions_[index(unit)];
  for (std::size_t t = 0; t < g.given.size(); ++t)
    if (g.given[t]) g.touched[t] = true;
}

void GradientSchedule::submit_extra(UnitId unit, const GradientTarget& target) {
  UnitGradients& g = units_[index(unit)];
  const UnitPlacement& placement = storage_.unit(unit);
  Extra& extra = g.extras[static_cast<std::size_t>(target.extra)];
  target.slot->held = false;
  const int use = (target.extra + 1) * static_cast<int>(placement.segments.size());
  for (std::size_t i = 0; i < placement.segments.size(); ++i) {
    if (!placement.segments[i].trainable) continue;
    const Region share{extra.shares[i].data(), extra.shares[i].owner()};
    target.slot->pending.push_back(context_.communicator().reduce_scatter(
        {data(unit, i, target), target.slot->buffer.owner()}, share, placement.segments[i].share, DType::f32,
        extra.in_sum ? Fold::onward : Fold::start,
        context_.label(Channel::reduce, unit, use + static_cast<int>(i), fingerprint(target.given)), context_.stream(Channel::reduce)));
  }
  extra.in_sum = true;
  ++reductions_[index(unit)];
  for (std::size_t t = 0; t < g.touched.size(); ++t)
    if (target.given[t]) g.touched[t] = true;
}

void GradientSchedule::agree_on_optional() {
  auto given = std::make_shared<std::vector<std::uint8_t>>();
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (context_.spec().units()[u].optional)
      for (const bool b : units_[u].given) given->push_back(b ? 1 : 0);
  if (given->empty()) return;
  Pending agreed =
      context_.communicator().all_reduce({given->data(), given}, Elements(static_cast<std::int64_t>(given->size())), DType::u8,
                                         ReduceOp::max, context_.label(Channel::control, kNoUnit), context_.stream(Channel::control));
  context_.wait(agreed, "wait optional units", kNoUnit);
  std::size_t at = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!context_.spec().units()[u].optional) continue;
    UnitGradients& g = units_[u];
    bool any = false;
    for (std::size_t t = 0; t < g.given.size(); ++t, ++at) {
      g.given[t] = (*given)[at] != 0;
      any = any || g.given[t];
    }
    const UnitId unit(static_cast<int>(u));
    if (any) {
      if (g.opened == 0) begin(unit);  // this rank gives zeros
      submit(unit);
    } else if (g.state == GradientState::open) {
      g.state = next(g.state, GradientEvent::drop);
      if (g.slot != nullptr) g.slot->held = false;
    }
  }
}

void GradientSchedule::finish_leaf() {
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].opened > 0 && !units_[u].submitted && !context_.spec().units()[u].optional) submit(UnitId(static_cast<int>(u)));
  agree_on_optional();
  for (UnitGradients& g : units_) {
    g.opened = g.closed = g.extras_opened = 0;
    g.submitted = false;
    std::fill(g.given.begin(), g.given.end(), false);
  }
}

void GradientSchedule::finish_sum() {
  for (Slot& slot : storage_.gradient_pool()) settle(slot);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const UnitId unit(static_cast<int>(u));
    UnitGradients& g = units_[u];
    if (Slot* own = storage_.own_gradient_slot(unit)) settle(*own);
    for (Slot& slot : g.extra_slots) settle(slot);
    settle(unit);
    for (const Extra& extra : g.extras) {
      if (!extra.in_sum) continue;
      for (std::size_t i = 0; i < extra.shares.size(); ++i) {
        if (!storage_.unit(unit).segments[i].trainable) continue;
        float* sum = static_cast<float*>(storage_.owned_gradients(unit, i).data);
        const float* more = extra.shares[i].as<float>();
        for (std::int64_t e = 0; e < storage_.unit(unit).segments[i].share.value; ++e) sum[e] += more[e];
      }
    }
  }
}

bool GradientSchedule::touched(UnitId unit) const {
  const std::vector<bool>& t = units_[index(unit)].touched;
  return std::find(t.begin(), t.end(), true) != t.end();
}

void GradientSchedule::reset() {
  std::fill(reductions_.begin(), reductions_.end(), 0);
  for (Slot& slot : storage_.gradient_pool()) slot.pending.clear(), slot.held = false;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitGradients& g = units_[u];
    g.pending.clear();
    if (Slot* own = storage_.own_gradient_slot(UnitId(static_cast<int>(u)))) own->pending.clear(), own->held = false;
    for (Slot& slot : g.extra_slots) slot.pending.clear(), slot.held = false;
    g.state = GradientState::idle;
    g.opened = g.closed = g.live = g.extras_opened = 0;
    g.submitted = g.in_sum = false;
    g.slot = nullptr;
    for (Extra& extra : g.extras) extra.in_sum = false;
    std::fill(g.given.begin(), g.given.end(), false);
    std::fill(g.touched.begin(), g.touched.end(), false);
  }
}

int GradientSchedule::leases() const {
  int n = 0;
  for (const UnitGradients& g : units_) n += g.live;
  return n;
}

std::string GradientSchedule::live_leases() const {
  std::string names;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (units_[u].live > 0) names += (names.empty() ? "'" : ", '") + context_.name(UnitId(static_cast<int>(u))) + "'";
  return names;
}

}  // namespace tessera::runtime
