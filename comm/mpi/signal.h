// The small messages between communication threads: the header of each operation, and notices. All travel on one tag, so that what a rank
// says arrives in the order in which it was said.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/failure.h"
#include "comm/operation.h"
#include "tessera/communicator.h"

namespace tessera::comm::mpi {

inline constexpr int kMaxSignal = 8192;  ///< bytes
inline constexpr int kStreams = 2;       ///< per channel: contributions and results
/// Data messages from one rank to another, by channel and stream, since the epoch began.
using MessageCounts = std::array<std::int64_t, kChannels * kStreams>;

enum class SignalKind : std::uint8_t {
  header,     ///< the sender is in an operation: data for it may be sent
  interrupt,  ///< a step was unwound; so many operations the sender has begun, and begins no more in this epoch
  settle,     ///< so many data messages the sender has sent to you, and sends no more in this epoch
  resume,     ///< the sender is ready for the next epoch
  leave,      ///< the sender calls no more; so many operations there were
  abort,      ///< the communicator has failed, for this reason
  ping,       ///< do you live, and what do you wait for
  pong,       ///< what the sender waits for
  gone,       ///< the sender holds this communicator no more
  goodbye,    ///< the sender's process is done with all of its communicators
};

/// Operations, by channel.
using OperationCounts = std::array<std::int64_t, kChannels>;

/// What every signal begins with.
struct SignalHead {
  SignalKind kind{};
  std::int32_t context = 0;
  std::int32_t epoch = 0;
};

/// The header of an operation, as it travels: at most 64 bytes.
struct WireHeader {
  SignalKind kind = SignalKind::header;
  std::uint8_t channel_verb = 0;  ///< channel | verb << 4
  std::uint8_t types = 0;         ///< dtype | shard_dtype << 4
  std::uint8_t fold_reduce = 0;   ///< fold | reduce << 4
  std::int32_t root = 0;
  std::int32_t context = 0, epoch = 0;
  std::int64_t sequence = 0, count = 0, step = 0, leaf = 0;
  std::int32_t unit = 0, use = 0;
  std::uint64_t detail = 0;

  static WireHeader of(const Operation& operation, int context, int epoch);
  /// As much of an operation as the header says. `ranks` of the communicator.
  void fill(Operation& operation, int ranks) const;
  Channel channel() const { return static_cast<Channel>(channel_verb & 0xf); }
};
static_assert(sizeof(WireHeader) == 64);

using Packet = std::vector<std::byte>;

/// Appends plain values and texts to a packet.
class PacketWriter {
 public:
  PacketWriter(SignalKind kind, int context, int epoch) {
    value(kind);
    value(std::int32_t{context});
    value(std::int32_t{epoch});
  }
  template <class T>
  PacketWriter& value(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&x, sizeof(T));
    return *this;
  }
  PacketWriter& text(const std::string& s);  ///< cut so that a packet stays below kMaxSignal
  PacketWriter& ranks(const std::vector<Rank>& list);
  Packet take() { return std::move(packet_); }

 private:
  void append(const void* data, std::size_t size) {
    packet_.resize(packet_.size() + size);
    std::memcpy(packet_.data() + packet_.size() - size, data, size);
  }
  Packet packet_;
};

/// Reads what PacketWriter wrote. Past the end everything is zero.
class PacketReader {
 public:
  PacketReader(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  template <class T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T x{};
    if (at_ + sizeof(T) <= size_) std::memcpy(&x, data_ + at_, sizeof(T));
    at_ += sizeof(T);
    return x;
  }
  std::string text();
  std::vector<Rank> ranks();

 private:
  const std::byte* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

Packet pack(const WireHeader& header);
/// The head of any signal, headers of operations included.
SignalHead head_of(const std::byte* data, std::size_t size);

void write(PacketWriter& out, const Failure& failure);
Failure read_failure(PacketReader& in);

}  // namespace tessera::comm::mpi
