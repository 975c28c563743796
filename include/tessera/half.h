// bf16 and f16 as storage types: convert to float, compute, convert back (round to nearest, ties to even).
// NaN stays NaN (quiet), infinities and signed zeros are kept, f16 overflow becomes infinity. No branches: loops over them vectorise.
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
    // 32 bits until the end, and a signed comparison: what vector units do in one instruction each.
    const bool nan = static_cast<std::int32_t>(u & 0x7fffffffu) > 0x7f800000;
    bits = static_cast<std::uint16_t>((nan ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16.
struct f16 {
  std::uint16_t bits = 0;

  constexpr f16() = default;
  constexpr explicit f16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    // Below 2^-14: a multiple of 2^-24; adding 0.5 rounds at that place.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and above round to infinity
    result = magnitude > 0x7f800000u ? 0x7e00u : result;
    bits = static_cast<std::uint16_t>(sign | result);
  }
  constexpr explicit operator float() const {
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    // The exponent is moved by a multiplication, which takes subnormals along.
    const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
  }
};

}  // namespace tessera
