#include "comm/thread/move.h"

#include <algorithm>
#include <cstring>

#include "comm/fold.h"
#include "comm/parts.h"

namespace tessera::comm {

namespace {

const std::byte* source_of(const Operation& operation) { return static_cast<const std::byte*>(operation.source.data); }
std::byte* destination_of(const Operation& operation) { return static_cast<std::byte*>(operation.destination.data); }

Moved copy_in_chunks(std::byte* to, const std::byte* from, Bytes bytes, Bytes chunk, const std::function<bool()>& stop) {
  if (to == from) return Moved::wholly;
  for (std::int64_t at = 0; at < bytes.value; at += chunk.value) {
    if (stop()) return Moved::in_part;
    std::memcpy(to + at, from + at, static_cast<std::size_t>(std::min(chunk.value, bytes.value - at)));
  }
  return Moved::wholly;
}

class Mover {
 public:
  Mover(const std::vector<std::shared_ptr<Operation>>& operations, Rank rank, Bytes chunk, const std::function<bool()>& stop)
      : operations_(operations), rank_(rank.value), self_(*operations[static_cast<std::size_t>(rank.value)]), chunk_(chunk), stop_(stop) {}

  Moved all_gather() const {
    const Bytes part = to_bytes(self_.count, self_.dtype);
    for (std::size_t r = 0; r < operations_.size(); ++r) {
      std::byte* to = destination_of(self_) + static_cast<std::int64_t>(r) * part.value;
      if (copy_in_chunks(to, source_of(*operations_[r]), part, chunk_, stop_) == Moved::in_part) return Moved::in_part;
    }
    return Moved::wholly;
  }

  Moved reduce_scatter() const {
    const std::int64_t size = size_of(self_.dtype), into = size_of(self_.shard_dtype);
    const std::int64_t first = rank_ * self_.count.value;
    return in_steps(self_.count.value, [&](std::int64_t at, Elements n) {
      fold_sum(contributions((first + at) * size), self_.dtype, destination_of(self_) + at * into, self_.shard_dtype, n, self_.fold);
    });
  }

  // Each rank folds a part into its own memory and copies it to the others: no scratch is needed, since nobody else reads that part.
  Moved all_reduce() const {
    const std::int64_t size = size_of(self_.dtype);
    const Part part = part_of(self_.count, rank_, static_cast<int>(operations_.size()));
    return in_steps(part.size(), [&](std::int64_t at, Elements n) {
      const std::int64_t offset = (part.begin + at) * size;
      std::byte* result = destination_of(self_) + offset;
      if (self_.reduce == ReduceOp::sum) fold_sum(contributions(offset), self_.dtype, result, self_.dtype, n, Fold::start);
      else fold_extreme(contributions(offset), self_.dtype, result, n, self_.reduce);
      for (const auto& peer : operations_)
        if (peer.get() != &self_) std::memcpy(destination_of(*peer) + offset, result, static_cast<std::size_t>(n.value * size));
    });
  }

  Moved broadcast() const {
    const Operation& root = *operations_[static_cast<std::size_t>(self_.root.value)];
    return copy_in_chunks(destination_of(self_), source_of(root), to_bytes(self_.count, self_.dtype), chunk_, stop_);
  }

 private:
  std::vector<const void*> contributions(std::int64_t byte_offset) const {
    std::vector<const void*> out;
    out.reserve(operations_.size());
    for (const auto& operation : operations_) out.push_back(source_of(*operation) + byte_offset);
    return out;
  }

  template <class Step>
  Moved in_steps(std::int64_t elements, const Step& step) const {
    const std::int64_t each = std::max<std::int64_t>(1, chunk_.value / size_of(self_.dtype));
    for (std::int64_t at = 0; at < elements; at += each) {
      if (stop_()) return Moved::in_part;
      step(at, Elements(std::min(each, elements - at)));
    }
    return Moved::wholly;
  }

  const std::vector<std::shared_ptr<Operation>>& operations_;
  int rank_;
  const Operation& self_;
  Bytes chunk_;
  const std::function<bool()>& stop_;
};

}  // namespace

Moved move_data(const std::vector<std::shared_ptr<Operation>>& operations, Rank rank, Bytes chunk, const std::function<bool()>& stop) {
  const Mover mover(operations, rank, chunk, stop);
  switch (operations[static_cast<std::size_t>(rank.value)]->verb) {
    case Verb::all_gather: return mover.all_gather();
    case Verb::reduce_scatter: return mover.reduce_scatter();
    case Verb::all_reduce: return mover.all_reduce();
    case Verb::broadcast: return mover.broadcast();
    case Verb::barrier: break;
  }
  return Moved::wholly;
}

}  // namespace tessera::comm
