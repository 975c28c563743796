#include "comm/node/arena.h"

#include <iterator>

namespace tessera::comm::node {

std::optional<Bytes> Arena::take(Bytes bytes) {
  const std::int64_t size = rounded(bytes);
  const core::MutexLock lock(mutex_);
  for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
    const auto [begin, free] = *gap;
    if (free < size) continue;
    free_.erase(gap);
    if (free > size) free_[begin + size] = free - size;
    taken_ += Bytes(size);
    return Bytes(begin);
  }
  return std::nullopt;
}

void Arena::give(Bytes offset, Bytes bytes) {
  std::int64_t begin = offset.value, size = rounded(bytes);
  const core::MutexLock lock(mutex_);
  taken_ = taken_ - Bytes(size);
  const auto next = free_.lower_bound(begin);
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      size += previous->second;
      free_.erase(previous);
    }
  }
  if (next != free_.end() && begin + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  free_[begin] = size;
}

Bytes Arena::taken() const {
  const core::MutexLock lock(mutex_);
  return taken_;
}

}  // namespace tessera::comm::node
