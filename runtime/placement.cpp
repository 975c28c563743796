#include "runtime/placement.h"

#include <algorithm>

#include <fmt/format.h>

#include "shard/optimizer.h"
#include "tessera/error.h"

namespace tessera::runtime {
namespace {

SegmentPlacement place_segment(const shard::Segment& s, int index, const Options& options, const TransportTraits& transport) {
  const int ranks = transport.ranks;
  SegmentPlacement p;
  p.segment = index;
  p.dtype = s.dtype;
  p.trainable = s.training == Training::trainable;
  p.replicated = s.replicated;
  p.content = s.content;
  const bool one_shard = s.shards == 1;
  if (s.replicated) {
    // Shares need no alignment: every rank norms and updates the whole of it.
    p.share = Elements((s.content.value + ranks - 1) / ranks);
    p.full = Elements((std::max(s.full.value, p.share.value * ranks) + 63) / 64 * 64);
  } else {
    p.share = s.per_shard;
    p.full = s.full;
  }
  p.parameters_whole = options.stage < Stage::parameters || one_shard;
  p.parameters_shared = !p.parameters_whole && transport.full_flat_addressable;
  p.moments_whole = options.stage < Stage::moments || one_shard;
  p.gradients_whole = options.stage < Stage::gradients || s.replicated || (one_shard && options.micro_batches == 1);
  p.accumulator = p.trainable && p.gradients_whole && options.micro_batches > 1;
  return p;
}

// Slot offsets and sizes of one unit.
void lay_slots(UnitPlacement& unit) {
  for (SegmentPlacement& s : unit.segments) {
    if (!s.parameters_whole && !s.parameters_shared) {
      s.parameter_offset = unit.parameter_slot;
      unit.parameter_slot += aligned(to_bytes(s.full, s.dtype));
    }
    if (!s.trainable) continue;
    s.extra_offset = unit.extra_slot;
    unit.extra_slot += aligned(to_bytes(s.full, DType::f32));
    if (!s.gradients_whole) {
      s.gradient_offset = unit.gradient_slot;
      unit.gradient_slot += aligned(to_bytes(s.full, DType::f32));
    }
  }
}

template <class Own, class Size>
Bytes pool_slot(const std::vector<UnitPlacement>& units, Own own, Size size) {
  Bytes largest{};
  for (const UnitPlacement& u : units)
    if (!own(u)) largest = std::max(largest, size(u));
  return largest;
}

template <class Own, class Size>
int pool_units(const std::vector<UnitPlacement>& units, Own own, Size size) {
  return static_cast<int>(std::count_if(units.begin(), units.end(), [&](const UnitPlacement& u) { return !own(u) && size(u) > Bytes(0); }));
}

bool owns_parameters(const UnitPlacement& u) { return u.own_parameter_slot; }
bool owns_gradients(const UnitPlacement& u) { return u.own_gradient_slot; }
Bytes parameter_size(const UnitPlacement& u) { return u.parameter_slot; }
Bytes gradient_size(const UnitPlacement& u) { return u.gradient_slot; }

Bytes parameter_slots_total(const Placement& p, int slots) {
  Bytes own{};
  for (const UnitPlacement& u : p.units)
    if (u.own_parameter_slot) own += u.parameter_slot;
  const int n = std::min(slots, pool_units(p.units, owns_parameters, parameter_size));
  return own + pool_slot(p.units, owns_parameters, parameter_size) * n;
}

// Of the units used more than once, those get a parameter slot of their own whose absence from the pool makes the total smaller. Only the
// largest shape the pool's slots, so the candidates are "all reused units larger than t".
void choose_own_parameter_slots(const ModelSpec& spec, Placement& p, int slots) {
  const auto assign = [&](Bytes threshold) {
    for (std::size_t i = 0; i < p.units.size(); ++i)
      p.units[i].own_parameter_slot = spec.units()[i].uses > 1 && p.units[i].parameter_slot > threshold;
    return parameter_slots_total(p, slots);
  };
  std::vector<Bytes> thresholds{Bytes(INT64_MAX)};  // none owns
  for (std::size_t i = 0; i < p.units.size(); ++i)
    if (spec.units()[i].uses > 1 && p.units[i].parameter_slot > Bytes(0)) thresholds.push_back(p.units[i].parameter_slot - Bytes(1));
  Bytes best_threshold = thresholds.front();
  Bytes best = assign(best_threshold);
  for (const Bytes t : thresholds) {
    const Bytes total = assign(t);
    if (total < best) best = total, best_threshold = t;
  }
  assign(best_threshold);
}

MemoryBytes count_bytes(const ModelSpec& spec, Placement& p, int parameter_slots, int gradient_slots, Bytes scratch) {
  MemoryBytes b;
  p.shared = {};
  choose_own_parameter_slots(spec, p, parameter_slots);
  p.parameter_pool_slot = pool_slot(p.units, owns_parameters, parameter_size);
  p.gradient_pool_slot = pool_slot(p.units, owns_gradients, gradient_size);
  for (const UnitPlacement& u : p.units) {
    for (const SegmentPlacement& s : u.segments) {
      b[Category::parameters] += to_bytes(s.parameters_whole ? s.full : s.share, s.dtype);
      p.shared += to_bytes(s.parameters_whole ? s.full : s.share, s.dtype);
      if (!s.trainable) continue;
      b[Category::moments] += p.moments * to_bytes(s.moments_whole ? s.full : s.share, DType::f32);
      b[Category::gradients] += to_bytes(s.gradients_whole ? s.full : s.share, DType::f32);
      if (s.gradients_whole) p.shared += to_bytes(s.full, DType::f32);
      if (s.accumulator) b[Category::gradients] += to_bytes(s.share, DType::f32);
    }
    if (u.own_gradient_slot) b[Category::full_gradients] += u.gradient_slot;
  }
  b[Category::full_parameters] = parameter_slots_total(p, parameter_slots);
  b[Category::full_gradients] += p.gradient_pool_slot * std::min(gradient_slots, pool_units(p.units, owns_gradients, gradient_size));
  p.shared += b[Category::full_parameters] + b[Category::full_gradients];
  b[Category::communication] = scratch;
  for (const Bytes c : b.by_category) b.total += c;
  return b;
}

void check(const ModelSpec& spec, const Options& o, const TransportTraits& t) {
  shard::check(o.optimizer);
  if (spec.units().empty()) throw UsageError("the model has no units; declare them with ModelSpec::unit");
  if (t.ranks < 1) throw UsageError(fmt::format("{} ranks (at least 1)", t.ranks));
  if (o.micro_batches < 1) throw UsageError(fmt::format("Options::micro_batches is {} (at least 1)", o.micro_batches));
  if (o.parameter_slots < 1)
    throw UsageError(fmt::format("Options::parameter_slots is {} (at least 1: a unit must be somewhere)", o.parameter_slots));
  if (o.gradient_slots < 1) throw UsageError(fmt::format("Options::gradient_slots is {} (at least 1)", o.gradient_slots));
  if (o.prefetch < 0) throw UsageError(fmt::format("Options::prefetch is {} (0 turns it off)", o.prefetch));
  if (o.memory_budget < Bytes(0))
    throw UsageError(fmt::format("Options::memory_budget is {} bytes (0 is no limit)", o.memory_budget.value));
  if (o.deadline.count() <= 0) throw UsageError(fmt::format("Options::deadline is {} ms (must be positive)", o.deadline.count()));
  for (const UnitSpec& u : spec.units())
    for (const TensorSpec& tensor : u.tensors)
      if (tensor.training == Training::trainable && tensor.dtype != DType::f32)
        throw UsageError(fmt::format(
            "tensor '{}' of unit '{}' is trainable and {} (the optimizer of this version updates fp32); declare it fp32, or frozen",
            tensor.name, u.name, name_of(tensor.dtype)));
}

// What the options ask for, and nothing said about other options.
Placement place_as_told(const ModelSpec& spec, const Options& options, const TransportTraits& transport) {
  check(spec, options, transport);
  Placement p;
  p.moments = moments_per_element(options.optimizer);
  for (const UnitSpec& spec_unit : spec.units()) {
    p.layouts.emplace_back(spec_unit, transport.ranks);
    UnitPlacement unit;
    const auto& segments = p.layouts.back().segments();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].content == Elements(0)) continue;
      unit.segments.push_back(place_segment(segments[i], static_cast<int>(i), options, transport));
      if (segments[i].replicated)
        p.forecast.decisions.push_back(
            fmt::format("unit '{}': its {} {} elements are replicated on every rank (sharded, padding would exceed them)", spec_unit.name,
                        segments[i].content.value, name_of(segments[i].dtype)));
    }
    lay_slots(unit);
    unit.own_gradient_slot = unit.gradient_slot > Bytes(0) && (spec_unit.uses > 1 || spec_unit.optional);
    p.units.push_back(std::move(unit));
  }

  // The most slots that the budget allows: parameter slots are worth more than gradient slots, since gathers stand before compute.
  const bool unlimited = options.memory_budget == Bytes(0);
  for (int want_parameters = options.parameter_slots; want_parameters >= 1; --want_parameters) {
    for (int want_gradients = options.gradient_slots; want_gradients >= 1; --want_gradients) {
      const MemoryBytes bytes = count_bytes(spec, p, want_parameters, want_gradients, transport.scratch);
      const bool last = want_parameters == 1 && want_gradients == 1;
      if (!unlimited && bytes.total > options.memory_budget && !last) continue;
      if (!unlimited && bytes.total > options.memory_budget)
        throw UsageError(
            fmt::format("a memory budget of {} bytes cannot hold this rank's share of the model (stage {}, {} ranks); the smallest that "
                        "would do is {} bytes",
                        options.memory_budget.value, static_cast<int>(options.stage), transport.ranks, bytes.total.value));
      p.forecast.bytes = bytes;
      p.forecast.parameter_slots = std::min(want_parameters, pool_units(p.units, owns_parameters, parameter_size));
      p.forecast.gradient_slots = std::min(want_gradients, pool_units(p.units, owns_gradients, gradient_size));
      if (want_parameters < options.parameter_slots || want_gradients < options.gradient_slots)
        p.forecast.decisions.push_back(
            fmt::format("{} parameter and {} gradient slots instead of {} and {}, to keep the budget of {} bytes", want_parameters,
                        want_gradients, options.parameter_slots, options.gradient_slots, options.memory_budget.value));
      for (std::size_t i = 0; i < p.units.size(); ++i)
        if (p.units[i].own_parameter_slot)
          p.forecast.decisions.push_back(
              fmt::format("unit '{}' has a parameter slot of its own ({} bytes) and stays gathered from first to last use: smaller than "
                          "larger pool slots",
                          spec.units()[i].name, p.units[i].parameter_slot.value));
      return p;
    }
  }
  return p;
}

}  // namespace

Placement place(const ModelSpec& spec, const Options& options, const TransportTraits& transport) {
  Placement p = place_as_told(spec, options, transport);
  for (int stage = 0; stage < static_cast<int>(options.stage); ++stage) {
    Options lower = options;
    lower.stage = static_cast<Stage>(stage);
    lower.memory_budget = Bytes(0);
    const Bytes total = place_as_told(spec, lower, transport).forecast.bytes.total;
    if (total >= p.forecast.bytes.total) continue;
    p.forecast.decisions.push_back(fmt::format(
        "stage {} would hold {} bytes instead of {}: this model is so small that slots and padding outweigh what stage {} shards", stage,
        total.value, p.forecast.bytes.total.value, static_cast<int>(options.stage)));
    break;
  }
  return p;
}

}  // namespace tessera::runtime

namespace tessera {
MemoryForecast forecast_memory(const ModelSpec& spec, const Options& options, const TransportTraits& transport) {
  return runtime::place(spec, options, transport).forecast;
}
}  // namespace tessera
