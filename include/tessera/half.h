// bf16 and f16 as storage types: convert to float, compute, convert back (round to nearest, ties to even).
// NaN stays NaN (quiet), infinities and signed zeros are kept, f16 overflow becomes infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

/// bfloat16: the upper half of an IEEE binary32.
struct bf16 {
  std::uint16_t bits = 0;

  constexpr bf16() = default;
  constexpr explicit bf16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    else bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16.
struct f16 {
  std::uint16_t bits = 0;

  constexpr f16() = default;
  constexpr explicit f16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
    const std::uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7e00u);
      return;
    }
    if (a >= 0x477ff000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7c00u);
      return;
    }                       // 65520 and above round to infinity
    if (a < 0x38800000u) {  // below 2^-14: a multiple of 2^-24; adding 0.5 rounds at that place
      const float shifted = std::bit_cast<float>(a) + 0.5f;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
      return;
    }
    const std::uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
    bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t e = (bits >> 10) & 0x1fu, m = bits & 0x3ffu;
    if (e == 31) return std::bit_cast<float>(sign | 0x7f800000u | (m << 13));
    if (e == 0) {
      const float small = static_cast<float>(m) * 0x1p-24f;
      return (bits & 0x8000u) != 0 ? -small : small;
    }
    return std::bit_cast<float>(sign | ((e + 112u) << 23) | (m << 13));
  }
};

}  // namespace tessera
