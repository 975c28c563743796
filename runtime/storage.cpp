#include "runtime/storage.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/planted_fault.h"
#include "tessera/error.h"

namespace tessera::runtime {
namespace {

void clear(const Buffer& buffer) {
  if (buffer.bytes() > Bytes(0)) std::memset(buffer.data(), 0, static_cast<std::size_t>(buffer.bytes().value));
}

Region inside(const Buffer& buffer, Bytes offset) { return {buffer.data() + offset.value, buffer.owner()}; }

// Elements of a segment-shaped buffer that belong to no tensor and are not zero. `begin` is the buffer's first element in the segment.
template <class T>
std::int64_t dirty(const std::vector<shard::TensorRange>& pieces, const Buffer& buffer, Elements begin, Elements count) {
  if (!buffer) return 0;
  const T* values = buffer.as<T>();
  std::int64_t found = 0, at = begin.value;
  const auto scan = [&](std::int64_t end) {
    for (; at < end; ++at)
      if (std::memcmp(&values[at - begin.value], "\0\0\0\0\0\0\0\0", sizeof(T)) != 0) ++found;
  };
  for (const shard::TensorRange& r : pieces) {
    scan(r.flat_offset.value);
    at = r.flat_offset.value + r.elements.value;
  }
  scan((begin + count).value);
  return found;
}

}  // namespace

Storage::Storage(const Placement& placement, Communicator& communicator, std::shared_ptr<MemoryLedger> ledger)
    : placement_(placement), communicator_(communicator), ledger_(std::move(ledger)) {
  for (const UnitPlacement& unit : placement_.units) {
    std::vector<SegmentStorage> segments;
    for (const SegmentPlacement& s : unit.segments) {
      SegmentStorage m;
      const Bytes parameters = to_bytes(s.parameters_whole ? s.full : s.share, s.dtype);
      if (s.parameters_shared) {
        Communicator::Flat flat = communicator_.allocate_flat(parameters, Category::parameters, ledger_);
        m.parameters = std::move(flat.shard);
        m.full_parameters = flat.full;
        clear(m.parameters);
      } else {
        m.parameters = zeroed(parameters, Category::parameters, ReadBy::peers);
        if (s.parameters_whole) m.full_parameters = m.parameters.data();
      }
      if (s.trainable) {
        m.gradients = zeroed(to_bytes(s.gradients_whole ? s.full : s.share, DType::f32), Category::gradients,
                             s.gradients_whole ? ReadBy::peers : ReadBy::this_rank);
        if (s.accumulator) m.accumulator = zeroed(to_bytes(s.share, DType::f32), Category::gradients, ReadBy::this_rank);
        for (int i = 0; i < placement_.moments; ++i)
          m.moments[static_cast<std::size_t>(i)] = zeroed(to_bytes(update_count(s), DType::f32), Category::moments, ReadBy::this_rank);
      }
      if (core::planted(core::Fault::dirty_padding) && s.content < s.full) {
        const std::int64_t n = to_bytes(s.parameters_whole ? s.full : s.share, s.dtype).value;
        if (n > 0) m.parameters.data()[n - 1] = std::byte{1};
      }
      segments.push_back(std::move(m));
    }
    units_.push_back(std::move(segments));

    const auto own = [&](bool has, Bytes bytes, Category category) {
      if (!has) return std::unique_ptr<Slot>();
      auto slot = std::make_unique<Slot>();
      slot->buffer = communicator_.allocate(bytes, category, ledger_);
      return slot;
    };
    own_parameters_.push_back(own(unit.own_parameter_slot, unit.parameter_slot, Category::full_parameters));
    own_gradients_.push_back(own(unit.own_gradient_slot, unit.gradient_slot, Category::full_gradients));
  }
  const int one_more = core::planted(core::Fault::budget_overrun) ? 1 : 0;
  const auto pool = [&](std::vector<Slot>& slots, int count, Bytes bytes, Category category) {
    for (int i = 0; i < count; ++i) {
      slots.emplace_back();
      slots.back().buffer = communicator_.allocate(bytes, category, ledger_);
    }
  };
  pool(parameter_pool_, placement_.forecast.parameter_slots + one_more, placement_.parameter_pool_slot, Category::full_parameters);
  pool(gradient_pool_, placement_.forecast.gradient_slots, placement_.gradient_pool_slot, Category::full_gradients);
}

Buffer Storage::zeroed(Bytes bytes, Category category, ReadBy readers) {
  Buffer b = readers == ReadBy::peers ? communicator_.allocate(bytes, category, ledger_) : Buffer(bytes, category, ledger_);
  clear(b);
  return b;
}

Buffer Storage::extra(Bytes bytes, Category category, Bytes budget, const std::string& what) {
  if (budget > Bytes(0) && ledger_->current().total + bytes > budget)
    throw UsageError(fmt::format("{} needs {} bytes more than the memory budget of {} leaves", what,
                                 (ledger_->current().total + bytes - budget).value, budget.value));
  return zeroed(bytes, category, category == Category::full_gradients ? ReadBy::peers : ReadBy::this_rank);
}

Region Storage::owned_parameters(UnitId unit, std::size_t i) const {
  const SegmentPlacement& s = this->unit(unit).segments[i];
  const Bytes offset = s.parameters_whole ? to_bytes(s.share, s.dtype) * communicator_.rank().value : Bytes(0);
  return inside(segment(unit, i).parameters, offset);
}

Region Storage::owned_gradients(UnitId unit, std::size_t i) const {
  const SegmentPlacement& s = this->unit(unit).segments[i];
  const SegmentStorage& m = segment(unit, i);
  if (s.accumulator) return inside(m.accumulator, Bytes(0));
  return inside(m.gradients, s.gradients_whole ? to_bytes(s.share, DType::f32) * communicator_.rank().value : Bytes(0));
}

Elements Storage::update_begin(const SegmentPlacement& s) const {
  return s.moments_whole ? Elements(0) : s.share * communicator_.rank().value;
}

std::vector<shard::TensorRange> Storage::pieces(UnitId unit, const SegmentPlacement& s, Elements begin, Elements count) const {
  const Elements end = std::min(begin + count, s.content);
  if (end <= begin) return {};
  return layout(unit).pieces(s.segment, begin, end - begin);
}

Elements Storage::dirty_padding(const ModelSpec& spec) const {
  std::int64_t found = 0;
  for (std::size_t u = 0; u < spec.units().size(); ++u) {
    const UnitId unit(static_cast<int>(u));
    for (std::size_t i = 0; i < this->unit(unit).segments.size(); ++i) {
      const SegmentPlacement& s = this->unit(unit).segments[i];
      const SegmentStorage& m = segment(unit, i);
      const Elements own = s.share * communicator_.rank().value;
      const auto count = [&](const Buffer& b, bool whole, DType dtype) {
        const Elements begin = whole ? Elements(0) : own;
        const Elements n = whole ? s.full : s.share;
        const std::vector<shard::TensorRange> tensors = pieces(unit, s, begin, n);
        switch (size_of(dtype)) {
          case 1: found += dirty<std::uint8_t>(tensors, b, begin, n); break;
          case 2: found += dirty<std::uint16_t>(tensors, b, begin, n); break;
          case 4: found += dirty<std::uint32_t>(tensors, b, begin, n); break;
          default: found += dirty<std::uint64_t>(tensors, b, begin, n); break;
        }
      };
      count(m.parameters, s.parameters_whole, s.dtype);
      count(m.gradients, s.gradients_whole, DType::f32);
      count(m.accumulator, false, DType::f32);
      for (const Buffer& b : m.moments) count(b, s.moments_whole, DType::f32);
    }
  }
  return Elements(found);
}

}  // namespace tessera::runtime
