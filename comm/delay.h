// Random sleeps before each phase of an operation, for tests: missing waits and order faults show themselves.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "comm/operation.h"

namespace tessera::comm {

/// SplitMix64's finaliser: a counter-based generator, so that a run's delays depend on nothing but its operations.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// How long phase `phase` of `operation` waits on `rank`: 0 to `longest`.
inline std::chrono::microseconds delay_of(const Operation& operation, Rank rank, int phase, std::chrono::microseconds longest) {
  if (longest.count() <= 0) return {};
  std::uint64_t key = mix(static_cast<std::uint64_t>(rank.value));
  key = mix(key ^ (static_cast<std::uint64_t>(operation.sequence) * 16 + static_cast<std::uint64_t>(operation.label.channel) * 4 +
                   static_cast<std::uint64_t>(phase)));
  return std::chrono::microseconds(key % (static_cast<std::uint64_t>(longest.count()) + 1));
}

}  // namespace tessera::comm
