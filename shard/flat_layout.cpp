#include "shard/flat_layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/planted_fault.h"
#include "shard/shape.h"
#include "tessera/error.h"

namespace tessera::shard {
namespace {

Elements rounded_up(Elements n, std::int64_t multiple) { return Elements((n.value + multiple - 1) / multiple * multiple); }

/// Pads the segment to equal shards of whole blocks, or replicates it where that padding would exceed its content.
void cut(Segment& segment, int shards) {
  const Elements sharded = rounded_up(segment.content, shards * kBlock);
  segment.replicated = sharded - segment.content > segment.content;
  segment.shards = segment.replicated ? 1 : shards;
  segment.full = segment.replicated ? rounded_up(segment.content, segment.content.value >= kBlock ? kBlock : kTensorAlignment) : sharded;
  segment.per_shard = segment.full / segment.shards;
}

}  // namespace

FlatLayout::FlatLayout(const UnitSpec& unit, int shards) {
  if (shards < 1) throw UsageError(fmt::format("unit '{}' cannot be cut into {} shards; at least 1", unit.name, shards));
  places_.reserve(unit.tensors.size());
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const TensorSpec& tensor = unit.tensors[i];
    const auto found = std::find_if(segments_.begin(), segments_.end(),
                                    [&](const Segment& s) { return s.dtype == tensor.dtype && s.training == tensor.training; });
    const auto index = static_cast<std::size_t>(found - segments_.begin());
    if (found == segments_.end()) {
      Segment added;
      added.dtype = tensor.dtype;
      added.training = tensor.training;
      segments_.push_back(std::move(added));
    }
    Segment& segment = segments_[index];
    const Elements n = tensor.elements();
    const Elements offset = rounded_up(segment.content, n.value >= kLargeTensor ? kBlock : kTensorAlignment);
    if (offset + n > kMostElements)
      throw UsageError(fmt::format("unit '{}' has more than {} elements up to tensor '{}'", unit.name, kMostElements.value, tensor.name));
    places_.push_back({static_cast<int>(index), offset, n});
    segment.tensors.push_back(static_cast<int>(i));
    // An empty tensor has a place but takes no room, so that it moves nothing.
    if (n.value > 0) segment.content = offset + n;
  }
  for (Segment& segment : segments_) cut(segment, shards);
}

std::vector<TensorRange> FlatLayout::pieces(int segment, Elements begin, Elements count) const {
  const Segment& s = segments_.at(static_cast<std::size_t>(segment));
  if (begin.value < 0 || count.value < 0 || count > s.full - begin)
    throw UsageError(fmt::format("elements [{}, {} + {}) reach outside segment {} of {} elements", begin.value, begin.value, count.value,
                                 segment, s.full.value));
  const Elements end = begin + count;
  std::vector<TensorRange> result;
  // Ends never fall along the segment, empty tensors included, so bisection finds the first tensor that reaches past `begin`.
  auto next =
      std::partition_point(s.tensors.begin(), s.tensors.end(), [&](int t) { return place(t).flat_offset + place(t).elements <= begin; });
  for (; next != s.tensors.end() && place(*next).flat_offset < end; ++next) {
    const TensorPlace& p = place(*next);
    const Elements from = std::max(p.flat_offset, begin);
    const Elements to = std::min(p.flat_offset + p.elements, end);
    if (from < to) result.push_back({*next, from - p.flat_offset, from, to - from});
  }
  return result;
}

Elements FlatLayout::shard_begin(int segment, int index) const {
  const Segment& s = segments_.at(static_cast<std::size_t>(segment));
  if (index < 0 || index >= s.shards)
    throw UsageError(fmt::format("segment {} has {} shards, none with index {}", segment, s.shards, index));
  const Elements begin = s.per_shard * index;
  if (core::planted(core::Fault::shard_off_by_one) && begin.value > 0) return begin - Elements(1);
  return begin;
}

}  // namespace tessera::shard
