// Values for tests of collectives, and the sums that a plain loop makes of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "tessera/communicator.h"

namespace tessera::testing {

inline constexpr DType kAllTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8};

inline Label label(Channel channel, int unit = 0, std::int64_t step = 0) {
  Label out;
  out.channel = channel;
  out.unit = UnitId(unit);
  out.step = step;
  return out;
}

/// Element `i` of `rank`'s contribution: magnitudes from 2^-12 to 2^11 and both signs, so that the order of a sum shows in its bits.
template <class T>
T value(int rank, std::int64_t i, std::uint64_t salt = 0) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) << 40) ^ static_cast<std::uint64_t>(i) ^ (salt << 20);
  for (int round = 0; round < 3; ++round) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x >> 8);
  } else {
    const double mantissa = static_cast<double>(x >> 40) / static_cast<double>(1 << 24) - 0.5;
    double scale = 1;
    for (std::uint64_t e = 0; e < x % 24; ++e) scale *= 2;
    if constexpr (std::is_same_v<T, double>) return mantissa * scale / 4096;
    else return T(static_cast<float>(mantissa * scale / 4096));
  }
}

template <class T>
std::vector<T> values(int rank, std::int64_t n, std::uint64_t salt = 0) {
  std::vector<T> out(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) out[static_cast<std::size_t>(i)] = value<T>(rank, i, salt);
  return out;
}

/// ((start + c_0) + c_1) + ... one element at a time.
template <class T>
typename core::SumType<T>::type sum_of(int ranks, std::int64_t i, typename core::SumType<T>::type start = {}, std::uint64_t salt = 0) {
  using A = typename core::SumType<T>::type;
  A sum = start;
  for (int r = 0; r < ranks; ++r) {
    if constexpr (std::is_integral_v<A>)
      sum = static_cast<A>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(value<T>(r, i, salt)));
    else sum = sum + static_cast<A>(value<T>(r, i, salt));
  }
  return sum;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace tessera::testing
