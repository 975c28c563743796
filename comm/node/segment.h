// The memory that the ranks of one communicator share: anonymous (memfd), so that nothing of it is left on the host when the last
// process is gone, however it went. Sparse: pages exist once they are written.
//
//   | words (counters, headers, failures) | windows, 2 per rank and channel | flats | rank 0's own | rank 1's own | ...
//
// windows: data on its way between ranks whose own memory is private. flats: shards in rank order. own: what allocate() gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/communicator.h"
#include "tessera/types.h"

namespace tessera::comm::node {

/// Where everything lies; a pure function of what the ranks agree on.
struct SegmentLayout {
  SegmentLayout(int ranks, Bytes chunk, Bytes words, Bytes room);

  Bytes window(Rank rank, Channel channel, int half) const;  ///< offset
  Bytes own(Rank rank) const { return own_begin + own_bytes * rank.value; }

  int ranks;
  Bytes window_bytes;  ///< of one window
  Bytes windows_begin, flats_begin, flats_bytes, own_begin, own_bytes;
  Bytes total;

  /// One rank's windows.
  Bytes scratch() const { return window_stride() * (2 * kChannels); }

 private:
  Bytes window_stride() const { return Bytes((window_bytes.value + 63) / 64 * 64); }
};

/// A mapping. Moves, does not copy.
class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  /// New and empty. Throws RuntimeFailure saying what the system refused.
  static Segment create(Bytes bytes);
  /// The one that process `pid` has open as `fd`.
  static Segment open(int pid, int fd, Bytes bytes);
  /// The one that this process has inherited as `fd`.
  static Segment inherit(int fd, Bytes bytes);

  std::byte* data() const { return data_; }
  Bytes bytes() const { return bytes_; }
  int fd() const { return fd_; }
  /// Peers have it now. The mapping stays.
  void close_fd();
  /// The pages go back to the system; they read as zero afterwards. Whole pages inside the range only.
  void give_back(Bytes offset, Bytes bytes) const;

 private:
  static Segment map(int fd, Bytes bytes);
  std::byte* data_ = nullptr;
  Bytes bytes_{};
  int fd_ = -1;
};

/// Physical memory of this machine.
Bytes memory_of_host();
/// Of it, what processes in this one's control group may still take.
Bytes free_memory();
/// What distinguishes processes that can share memory from those that cannot: equal for two that can.
std::uint64_t host_key();

}  // namespace tessera::comm::node
