// Random numbers by counter: a pure function of a key and an index, so that they do not depend on who asks for which, or in what order.
// SplitMix64's finalizer (Steele, Lea and Flood 2014), applied once for each word of the key.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace gpt {

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix(std::uint64_t key, std::uint64_t index) { return mix(mix(key) ^ index); }

/// FNV-1a: names as keys.
constexpr std::uint64_t key_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

/// Uniform in (0, 1].
inline double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53; }

/// Uniform in 0 .. bound - 1, bound > 0; the bias is below bound / 2^64.
constexpr std::uint64_t below(std::uint64_t bits, std::uint64_t bound) { return bits % bound; }

/// Element `index` of a sequence of standard normal values (Box and Muller 1958).
inline double normal(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t pair = index & ~std::uint64_t{1};
  const double radius = std::sqrt(-2.0 * std::log(uniform(mix(key, pair))));
  const double angle = 2.0 * std::numbers::pi * uniform(mix(key, pair + 1));
  return radius * ((index & 1) == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace gpt
