#include "comm/node/move.h"

#include <algorithm>
#include <cstring>

#include "comm/fold.h"
#include "core/planted_fault.h"

namespace tessera::comm::node {

namespace {

std::int64_t offset_in(const SegmentLayout& layout, const std::byte* segment, const void* data) {
  const auto at = reinterpret_cast<std::uintptr_t>(data), begin = reinterpret_cast<std::uintptr_t>(segment);
  const auto first = begin + static_cast<std::uintptr_t>(layout.flats_begin.value),
             last = begin + static_cast<std::uintptr_t>(layout.total.value);
  return at >= first && at < last ? static_cast<std::int64_t>(at - begin) : kPrivate;
}

}  // namespace

Move::Move(const Operation& operation, Rank rank, const SegmentLayout& layout, std::byte* segment, Bytes chunk)
    : operation_(operation),
      rank_(rank.value),
      layout_(layout),
      segment_(segment),
      size_(size_of(operation.dtype)),
      extent_(operation.count.value),
      stride_(operation.stride.value_or(operation.count).value),
      // A window of reduce_scatter holds a piece for every rank.
      staged_(layout.window_bytes.value / (operation.verb == Verb::reduce_scatter ? layout.ranks : 1) / size_),
      chunk_(std::max<std::int64_t>(1, chunk.value / size_)),
      // all_reduce writes where it reads: peers must not look there.
      source_(operation.verb == Verb::all_reduce ? kPrivate : offset_in(layout, segment, operation.source.data)) {}

bool Move::reads(int rank) const {
  if (layout_.ranks == 1) return false;
  return operation_.verb != Verb::broadcast || operation_.root.value == rank;
}

void Move::stage(std::int64_t round, int half) const {
  if (source_ != kPrivate || !reads(rank_)) return;
  const std::int64_t begin = round * staged_, count = std::min(staged_, extent_ - begin);
  if (count <= 0) return;
  const auto* from = static_cast<const std::byte*>(operation_.source.data);
  std::byte* to = window(rank_, half);
  if (operation_.verb != Verb::reduce_scatter) {
    std::memcpy(to, from + begin * size_, static_cast<std::size_t>(count * size_));
    return;
  }
  for (int part = 0; part < layout_.ranks; ++part)
    if (part != rank_)
      std::memcpy(to + part * staged_ * size_, from + (part * stride_ + begin) * size_, static_cast<std::size_t>(count * size_));
}

void Move::meet(const std::vector<std::int64_t>& sources) {
  sources_ = sources;
  bool staged = false;
  for (int r = 0; r < layout_.ranks; ++r) {
    if (!reads(r)) continue;
    (private_source(static_cast<std::size_t>(r)) ? staged : direct_) = true;
  }
  if (extent_ == 0) direct_ = false;
  rounds_ = staged ? std::max<std::int64_t>(1, (extent_ + staged_ - 1) / staged_) : 1;
}

const std::byte* Move::piece(int rank, int half, std::int64_t in_source, std::int64_t in_window) const {
  if (rank == rank_) return static_cast<const std::byte*>(operation_.source.data) + in_source * size_;
  const std::int64_t source = sources_[static_cast<std::size_t>(rank)];
  if (source != kPrivate) return segment_ + source + in_source * size_;
  return window(rank, half) + in_window * size_;
}

void Move::read_range(std::int64_t begin, std::int64_t count, std::int64_t round_begin, int half) const {
  auto* to = static_cast<std::byte*>(operation_.destination.data);
  const auto bytes = static_cast<std::size_t>(count * size_);
  const std::int64_t within = begin - round_begin;
  const auto contributions = [&](std::int64_t in_source, std::int64_t in_window) {
    std::vector<const void*> out;
    out.reserve(static_cast<std::size_t>(layout_.ranks));
    for (int r = 0; r < layout_.ranks; ++r) out.push_back(piece(r, half, in_source, in_window));
    return out;
  };
  switch (operation_.verb) {
    case Verb::all_gather:
      for (int r = 0; r < layout_.ranks; ++r) {
        const std::byte* from = piece(r, half, begin, within);
        std::byte* at = to + (r * stride_ + begin) * size_;
        if (at != from) std::memcpy(at, from, bytes);
      }
      break;
    case Verb::reduce_scatter:
      fold_sum(contributions(rank_ * stride_ + begin, rank_ * staged_ + within), operation_.dtype,
               to + begin * size_of(operation_.shard_dtype), operation_.shard_dtype, Elements(count), operation_.fold);
      break;
    case Verb::all_reduce:
      if (operation_.reduce == ReduceOp::sum)
        fold_sum(contributions(begin, within), operation_.dtype, to + begin * size_, operation_.dtype, Elements(count), Fold::start);
      else fold_extreme(contributions(begin, within), operation_.dtype, to + begin * size_, Elements(count), operation_.reduce);
      break;
    case Verb::broadcast:
      if (operation_.root.value != rank_) std::memcpy(to + begin * size_, piece(operation_.root.value, half, begin, within), bytes);
      break;
    case Verb::barrier: break;
  }
}

void Move::read(std::int64_t round, int half, const std::function<bool()>& stop) const {
  const std::int64_t begin = rounds_ > 1 ? round * staged_ : 0, end = rounds_ > 1 ? std::min(begin + staged_, extent_) : extent_;
  for (std::int64_t at = begin; at < end; at += chunk_) {
    if (stop()) return;
    read_range(at, std::min(chunk_, end - at), begin, half);
  }
}

}  // namespace tessera::comm::node
