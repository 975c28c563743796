// Atomic words in memory that processes share, and Linux's futex on them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tessera/communicator.h"

namespace tessera::comm::node {

struct Platform {
  static constexpr std::size_t kChannels = tessera::kChannels;
  using Word32 = std::atomic<std::uint32_t>;
  using Word64 = std::atomic<std::uint64_t>;
  static_assert(Word32::is_always_lock_free && Word64::is_always_lock_free, "processes cannot share a lock that is not in the word");

  template <class T>
  static T load(const std::atomic<T>& word) {
    return word.load(std::memory_order_seq_cst);
  }
  template <class T>
  static void store(std::atomic<T>& word, T value) {
    word.store(value, std::memory_order_seq_cst);
  }
  static bool compare_exchange(Word64& word, std::uint64_t expected, std::uint64_t desired) {
    return word.compare_exchange_strong(expected, desired, std::memory_order_seq_cst);
  }
  static void fetch_or(Word64& word, std::uint64_t bits) { word.fetch_or(bits, std::memory_order_seq_cst); }
  static void add(Word32& word, std::int32_t by) { word.fetch_add(static_cast<std::uint32_t>(by), std::memory_order_seq_cst); }

  /// Sleeps while `word` is `seen`, at most until `until`; may wake for no reason.
  static void sleep(Word32& word, std::uint32_t seen, std::chrono::steady_clock::time_point until);
  /// All that sleep on `word`, in all processes.
  static void wake(Word32& word);
};

}  // namespace tessera::comm::node
