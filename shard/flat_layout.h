// Who owns element i. A unit's tensors are laid end to end into a flat; the flat has one segment per (dtype, trainable), in order of first
// appearance, each cut into equal shards. Pure arithmetic: (unit, number of shards) in, offsets out; nothing here communicates or allocates
// tensor data.
//
//   segment 0 (fp32, trainable)                      segment 1 (fp32, frozen)
//   | wq ....|pad| wk ....|pad| bias |  padding   |  | table ..............|padding|
//   |<---- shard 0 ---->|<---- shard 1 ---->|        |<-- shard 0 -->|<-- shard 1 -->|
//
// Offsets are in elements and the same for every dtype and number of shards: tensors start at multiples of 64, tensors of 4,096 elements
// or more at multiples of 1,024; shards are multiples of 1,024. So views are aligned and no norm block (1,024 elements from the segment's
// start) is cut. A tensor without elements has a place and takes no room.
//
// A segment is padded to a multiple of 1,024 elements per shard. Where that padding would exceed the content, the segment is replicated
// instead: one shard, held by every rank, padded to a multiple of 1,024, or of 64 where it has fewer elements than that.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/model_spec.h"
#include "tessera/types.h"

namespace tessera::shard {

inline constexpr std::int64_t kTensorAlignment = 64;  // elements
inline constexpr std::int64_t kLargeTensor = 4096;    // elements, from here on aligned to a block
inline constexpr std::int64_t kBlock = 1024;          // elements: norm blocks, shard granularity

/// Where a tensor lies.
struct TensorPlace {
  int segment = 0;
  Elements flat_offset{};  ///< from the start of its segment
  Elements elements{};
};

struct Segment {
  DType dtype = DType::f32;
  Training training = Training::trainable;
  bool replicated = false;   ///< every rank holds it whole
  int shards = 1;            ///< W, or 1 where replicated
  Elements content{};        ///< end of the last tensor, from the segment's start
  Elements full{};           ///< with padding; shards · per_shard
  Elements per_shard{};      ///< of one shard; == full where there is one shard
  std::vector<int> tensors;  ///< indices into UnitSpec::tensors, in order of flat_offset
};

/// A piece of a tensor that lies inside a range of its segment.
struct TensorRange {
  int tensor = 0;            ///< index into UnitSpec::tensors
  Elements tensor_offset{};  ///< from the tensor's first element
  Elements flat_offset{};    ///< from the segment's first element
  Elements elements{};       ///< > 0
};

class FlatLayout {
 public:
  /// `shards` >= 1: the size of the shard group. Throws UsageError for fewer, and for a segment of more than 2^58 elements.
  FlatLayout(const UnitSpec& unit, int shards);

  const std::vector<Segment>& segments() const { return segments_; }
  const TensorPlace& place(int tensor) const { return places_[static_cast<std::size_t>(tensor)]; }

  /// The pieces of tensors inside elements [begin, begin + count) of a segment, in order; padding and empty tensors appear in none.
  /// Throws UsageError for a range that reaches outside the segment.
  std::vector<TensorRange> pieces(int segment, Elements begin, Elements count) const;
  /// First element, in its segment, of shard `index`.
  Elements shard_begin(int segment, int index) const;

 private:
  std::vector<Segment> segments_;
  std::vector<TensorPlace> places_;
};

}  // namespace tessera::shard
