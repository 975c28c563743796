// What one rank does in a collective once all have come: reads of its peers' memory, straight where they have it in the segment, else
// through their windows, a round at a time.
//
// In round k a rank whose source is private first copies its next piece into one of its two windows, then tells that it has; when all have,
// everybody reads. The windows alternate from round to round, also from one operation to the next: whoever writes a window again
// has seen all others come to the round after the one in which they read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/node/segment.h"
#include "comm/node/words.h"
#include "comm/operation.h"

namespace tessera::comm::node {

class Move {
 public:
  Move(const Operation& operation, Rank rank, const SegmentLayout& layout, std::byte* segment, Bytes chunk);

  /// Offset of this rank's source in the segment, or kPrivate.
  std::int64_t source() const { return source_; }
  /// Copies what round `round` needs from this rank into its window.
  void stage(std::int64_t round, int half) const;
  /// Once all have come: where the peers' sources lie.
  void meet(const std::vector<std::int64_t>& sources);
  std::int64_t rounds() const { return rounds_; }
  /// Peers read this rank's memory itself, or this rank theirs: nobody may go on before all have read.
  bool direct() const { return direct_; }
  /// Reads the peers' pieces of round `round`; stops early where `stop` says so.
  void read(std::int64_t round, int half, const std::function<bool()>& stop) const;

 private:
  bool private_source(std::size_t rank) const { return sources_[rank] == kPrivate; }
  bool reads(int rank) const;  ///< somebody other than `rank` reads its source
  const std::byte* piece(int rank, int half, std::int64_t in_source, std::int64_t in_window) const;
  std::byte* window(int rank, int half) const { return segment_ + layout_.window(Rank(rank), operation_.label.channel, half).value; }
  void read_range(std::int64_t begin, std::int64_t count, std::int64_t round_begin, int half) const;

  const Operation& operation_;
  const int rank_;
  const SegmentLayout& layout_;
  std::byte* const segment_;
  const std::int64_t size_;    ///< of an element
  const std::int64_t extent_;  ///< elements that rounds go over: of one part, or of the whole
  const std::int64_t stride_;  ///< elements from one part to the next
  std::int64_t staged_;        ///< elements of a round, where something is private
  std::int64_t chunk_;         ///< elements between two looks at `stop`
  std::int64_t source_;
  std::vector<std::int64_t> sources_;
  std::int64_t rounds_ = 1;
  bool direct_ = false;
};

}  // namespace tessera::comm::node
