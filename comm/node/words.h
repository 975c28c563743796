// What lies at the beginning of a segment: the ranks' counters, what each is in, and how it failed. Plain values: any of them may have been
// cut off by a kill, and is then read by nobody, because the counter that publishes it never moved.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "comm/failure.h"
#include "comm/node/gate.h"
#include "comm/node/platform.h"
#include "comm/operation.h"

namespace tessera::comm::node {

/// What a rank is in, and where its source lies, for the peers.
struct Header {
  OperationIdentity identity;
  std::int64_t source;  ///< offset in the segment; kPrivate where peers cannot see it
};
inline constexpr std::int64_t kPrivate = -1;
static_assert(std::is_trivially_copyable_v<Header>);

struct FailureRecord {
  FailureKind kind;
  std::int32_t rank;
  std::int32_t culprits;
  std::array<std::int32_t, 64> culprit;
  std::array<char, 64> verb;
  std::array<char, 192> unit;
  std::array<char, 512> cause;
  std::array<char, 1536> message;
};

FailureRecord record_of(const Failure& failure);
Failure failure_of(const FailureRecord& record);

/// What one rank writes.
struct alignas(64) RankWords : GateWords<Platform> {
  Platform::Word32 pid;      ///< 0 until it is there
  Platform::Word32 alarm;    ///< rung with the state and departures, for the rank's watcher
  Platform::Word64 resumed;  ///< the epoch it is ready for
  Platform::Word32 left;     ///< 1 after left_after was written
  std::array<std::int64_t, kChannels> left_after;
  Header headers[kChannels][2];       ///< of operation n at n % 2; a rank that begins n + 1 has seen all ranks in n
  FailureRecord failed, interrupted;  ///< published by SegmentWords::state
};

/// How the communicator is: one word, so that the first cause wins.
struct State {
  enum class Kind : std::uint64_t { running, interrupted, failed };
  Kind kind = Kind::running;
  int rank = 0;  ///< whose record says why
  std::uint32_t epoch = 0;

  static State of(std::uint64_t word) {
    return {static_cast<Kind>(word & 3u), static_cast<int>((word >> 2) & 0xffffffu), static_cast<std::uint32_t>(word >> 26)};
  }
  std::uint64_t word() const {
    return static_cast<std::uint64_t>(kind) | (static_cast<std::uint64_t>(rank) << 2) | (static_cast<std::uint64_t>(epoch) << 26);
  }
};

struct SegmentWords {
  Platform::Word64 state;  ///< a State; its epoch counts how often all have resumed
  // RankWords of each rank follow.
};

inline constexpr std::int64_t kRankWordsBegin = 64;
inline Bytes words_bytes(int ranks) { return Bytes(kRankWordsBegin + static_cast<std::int64_t>(sizeof(RankWords)) * ranks); }

/// Finds the RankWords of a rank in a mapping.
class WordsOf {
 public:
  explicit WordsOf(std::byte* segment) : segment_(segment) {}
  RankWords& operator()(int rank) const {
    return *reinterpret_cast<RankWords*>(segment_ + kRankWordsBegin + static_cast<std::int64_t>(sizeof(RankWords)) * rank);
  }
  Platform::Word64& state() const { return reinterpret_cast<SegmentWords*>(segment_)->state; }

 private:
  std::byte* segment_;
};

}  // namespace tessera::comm::node
