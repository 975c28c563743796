// bf16 and f16 against conversions by exact arithmetic in double.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tessera/half.h"

using namespace tessera;

namespace {

/// The value of 16 bits with so many bits of mantissa, by its definition.
double value_of(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// The nearest 16-bit number to `x`, ties to the even one, found among the two neighbours by binary search over the positive patterns.
std::uint16_t nearest(float x, int mantissa_bits) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double magnitude = std::fabs(static_cast<double>(x));
  const auto infinity = static_cast<std::uint16_t>(((1 << (15 - mantissa_bits)) - 1) << mantissa_bits);
  std::uint16_t low = 0, high = infinity;  // value(low) <= magnitude < value(high)
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of(middle, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = value_of(low, mantissa_bits);
  // The step above the largest finite number is where infinity begins for rounding.
  const double above =
      high == infinity ? below + (below - value_of(static_cast<std::uint16_t>(low - 1), mantissa_bits)) : value_of(high, mantissa_bits);
  const double to_low = magnitude - below, to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

template <class H>
void check_all_patterns(int mantissa_bits) {
  int wrong_value = 0, wrong_trip = 0;
  for (std::uint32_t p = 0; p < 65536; ++p) {
    H h;
    h.bits = static_cast<std::uint16_t>(p);
    const auto f = static_cast<float>(h);
    const double expected = value_of(h.bits, mantissa_bits);
    if (std::isnan(expected)) {
      wrong_value += std::isnan(f) ? 0 : 1;
      wrong_trip += std::isnan(static_cast<float>(H(f))) ? 0 : 1;
      continue;
    }
    wrong_value += static_cast<double>(f) == expected && std::signbit(f) == std::signbit(expected) ? 0 : 1;
    wrong_trip += H(f).bits == h.bits ? 0 : 1;
  }
  CHECK(wrong_value == 0);
  CHECK(wrong_trip == 0);
}

template <class H>
void check_rounding(int mantissa_bits) {
  int wrong = 0;
  const auto check = [&](std::uint32_t bits) {
    const auto x = std::bit_cast<float>(bits);
    if (std::isnan(x)) return;
    wrong += H(x).bits == nearest(x, mantissa_bits) ? 0 : 1;
  };
  // Around every 16-bit value and every midpoint between two, and a stride through all floats.
  for (std::uint32_t p = 0; p < 65536; ++p) {
    H h;
    h.bits = static_cast<std::uint16_t>(p);
    const auto at = std::bit_cast<std::uint32_t>(static_cast<float>(h));
    for (std::uint32_t d = 0; d < 3; ++d) {
      check(at + d);
      check(at - d);
    }
    const double middle = (value_of(h.bits, mantissa_bits) + value_of(static_cast<std::uint16_t>(p + 1), mantissa_bits)) / 2;
    const auto tie = std::bit_cast<std::uint32_t>(static_cast<float>(middle));
    for (std::uint32_t d = 0; d < 2; ++d) {
      check(tie + d);
      check(tie - d);
    }
  }
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += 9973) check(static_cast<std::uint32_t>(u));
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("bf16: all 65536 patterns have the value of their definition and survive a round trip") { check_all_patterns<bf16>(7); }
TEST_CASE("f16: all 65536 patterns have the value of their definition and survive a round trip") { check_all_patterns<f16>(10); }
TEST_CASE("bf16: a float becomes the nearest, ties to even") { check_rounding<bf16>(7); }
TEST_CASE("f16: a float becomes the nearest, ties to even, infinity from 65520 on") { check_rounding<f16>(10); }

TEST_CASE("16-bit types: every NaN stays a quiet NaN") {
  for (std::uint32_t payload = 1; payload < 0x800000; payload = payload * 3 + 1) {
    const auto x = std::bit_cast<float>(0x7f800000u | payload);
    CHECK(std::isnan(static_cast<float>(bf16(x))));
    CHECK(std::isnan(static_cast<float>(f16(x))));
  }
}
