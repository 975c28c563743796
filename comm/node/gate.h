// The counters through which the ranks of one host meet, and how they sleep until a peer has moved one.
//
// A rank writes its own counters only, but for one bit: `closed`, by which anybody stops all further beginnings. Counters never fall
// within an epoch, so a rank that is killed in the middle leaves nothing locked.
//
//   begin(channel, n)   this rank has come to operation n, unless the gate was closed before: then it has not, and nobody is going to see
//                       it there. Once all ranks' gates are closed, what all have begun is the same set for everybody.
//   pass(channel)       this rank has done its part of a round inside an operation
//   await(ready)        sleeps until `ready` says yes; looked at again after every change that a peer rings the bell for
//
// Written over a Platform, which gives the channels, the atomic words and the futex: the real one (platform.h) and a model in which a test
// tries every order of steps (tests/unit/node_gate_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::comm::node {

inline constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
template <class Platform>
struct GateWords {
  typename Platform::Word64 begun[Platform::kChannels];  ///< operations begun in this epoch, and kClosed
  typename Platform::Word64 round[Platform::kChannels];  ///< rounds passed in this epoch
  typename Platform::Word32 bell;                        ///< changes whenever a peer has changed something
  typename Platform::Word32 sleepers;                    ///< threads of this rank that may be asleep on the bell
};

/// One rank's end. `words_of(rank)` gives the GateWords of any rank.
template <class Platform, class WordsOf>
class Gate {
 public:
  Gate(WordsOf words_of, int ranks, int rank) : words_of_(words_of), ranks_(ranks), rank_(rank) {}

  /// False where the gate is closed.
  bool begin(std::size_t channel, std::uint64_t n) {
    if (!Platform::compare_exchange(words_of_(rank_).begun[channel], n, n + 1)) return false;
    ring();
    return true;
  }
  std::uint64_t begun(int rank, std::size_t channel) const { return Platform::load(words_of_(rank).begun[channel]) & ~kClosed; }
  bool all_have_begun(std::size_t channel, std::uint64_t n) const {
    for (int r = 0; r < ranks_; ++r)
      if (begun(r, channel) <= n) return false;
    return true;
  }

  void pass(std::size_t channel, std::uint64_t rounds) {
    Platform::store(words_of_(rank_).round[channel], rounds);
    ring();
  }
  std::uint64_t passed(int rank, std::size_t channel) const { return Platform::load(words_of_(rank).round[channel]); }
  bool all_have_passed(std::size_t channel, std::uint64_t rounds) const {
    for (int r = 0; r < ranks_; ++r)
      if (passed(r, channel) < rounds) return false;
    return true;
  }

  /// Nobody begins anything any more. May be done by several ranks at once.
  void close() {
    for (int r = 0; r < ranks_; ++r)
      for (std::size_t c = 0; c < Platform::kChannels; ++c) Platform::fetch_or(words_of_(r).begun[c], kClosed);
    ring();
  }
  /// The next epoch: by one rank, while all others wait for it.
  void reopen() {
    for (int r = 0; r < ranks_; ++r)
      for (std::size_t c = 0; c < Platform::kChannels; ++c) {
        Platform::store(words_of_(r).begun[c], std::uint64_t{0});
        Platform::store(words_of_(r).round[c], std::uint64_t{0});
      }
  }

  /// After a change that peers may wait for. Threads of this rank that wait are woken too.
  void ring() {
    for (int r = 0; r < ranks_; ++r) {
      auto& words = words_of_(r);
      Platform::add(words.bell, 1);
      // A sleeper announces itself before it compares the bell: either it is seen here, or it sees the bell changed.
      if (Platform::load(words.sleepers) > 0) Platform::wake(words.bell);
    }
  }

  /// The bell is read before the condition, so that a change in between is not slept through. `until` is the platform's idea of a
  /// deadline; `ready` says yes when it has come.
  template <class Ready, class Until>
  void await(const Ready& ready, const Until& until) {
    auto& words = words_of_(rank_);
    for (;;) {
      const auto seen = Platform::load(words.bell);
      if (ready()) return;
      Platform::add(words.sleepers, 1);
      Platform::sleep(words.bell, seen, until);
      Platform::add(words.sleepers, -1);
    }
  }

 private:
  WordsOf words_of_;
  int ranks_;
  int rank_;
};

}  // namespace tessera::comm::node
