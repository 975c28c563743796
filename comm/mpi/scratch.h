// How much memory a communicator over MPI keeps for contributions on their way into a sum, and how it is cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/communicator.h"

namespace tessera::comm::mpi {

inline constexpr Bytes kScratchLimit{8 << 20};        ///< of a communicator made by split()
inline constexpr Bytes kWorldScratchLimit{64 << 10};  ///< of a world's own communicator, which carries control traffic
inline constexpr int kSlots = 4;                      ///< chunks on their way from one peer to one sum

/// Four chunks per peer for each channel: large ones on the reduce channel (two make up TransportOptions::chunk), small ones on the others.
struct ScratchLayout {
  ScratchLayout(int ranks, Bytes chunk, Bytes limit) : peers_(ranks - 1) {
    if (peers_ == 0) return;
    constexpr std::int64_t kSmall = 4096;
    const std::int64_t share = limit.value / (kSlots * peers_);
    small_ = Bytes(fit(std::min(chunk.value, kSmall), share / kChannels));
    large_ = Bytes(fit(std::max(chunk.value / 2, std::min(chunk.value, kSmall)), share - (kChannels - 1) * stride(small_)));
  }

  /// Most bytes of one contribution at a time.
  Bytes chunk(Channel channel) const { return channel == Channel::reduce ? large_ : small_; }
  /// Where the chunk of `slot` (0 to 3) from the peer with index `peer` (0 to ranks - 2) is kept.
  Bytes offset(Channel channel, int peer, int slot) const {
    std::int64_t before = 0;
    for (int c = 0; c < static_cast<int>(channel); ++c) before += kSlots * peers_ * stride(chunk(static_cast<Channel>(c)));
    return Bytes(before + (peer * kSlots + slot) * stride(chunk(channel)));
  }
  Bytes total() const { return peers_ == 0 ? Bytes(0) : Bytes(kSlots * peers_ * (stride(large_) + (kChannels - 1) * stride(small_))); }

 private:
  static constexpr std::int64_t kLine = 64;
  static std::int64_t stride(Bytes chunk) { return (chunk.value + kLine - 1) / kLine * kLine; }
  /// As wanted where it fits into `room`, else as large as the room allows.
  static std::int64_t fit(std::int64_t wanted, std::int64_t room) {
    return stride(Bytes(wanted)) <= room ? wanted : std::max(kLine, room / kLine * kLine);
  }

  std::int64_t peers_;
  Bytes small_{}, large_{};
};

}  // namespace tessera::comm::mpi
