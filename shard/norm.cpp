#include "shard/norm.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::shard {
namespace {

constexpr int kLowestExponent = 298;  // limb 0 counts units of 2^-298: the square of the smallest subnormal float
constexpr std::uint32_t kLimbMask = 0xffffffff;
/// Moves what is above 32 bits of a limb into the next one: from `first` to `last`, and on while there is something to move.
void carry(std::array<std::int64_t, ExactSum::kLimbs>& limbs, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i + 1 < limbs.size() && (i <= last || limbs[i] >> 32 != 0); ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= kLimbMask;
  }
}

}  // namespace

void ExactSum::add(double value) {
  if (!(value >= 0.0) || value >= 0x1p306) throw UsageError(fmt::format("an exact sum takes values in [0, 2^306), not {}", value));
  const auto bits = std::bit_cast<std::uint64_t>(value);
  if (bits << 1 == 0) return;
  const int exponent = static_cast<int>(bits >> 52);  // 0: subnormal, which counts as 1 without the leading one
  auto mantissa = (bits & 0xfffffffffffffu) | (exponent == 0 ? 0 : std::uint64_t{1} << 52);
  int shift = std::max(exponent, 1) - 1075 + kLowestExponent;
  if (shift < 0) {  // trailing zeros of a small but coarse enough value
    if (-shift > std::countr_zero(mantissa)) throw UsageError(fmt::format("an exact sum takes multiples of 2^-298, not {:a}", value));
    mantissa >>= -shift;
    shift = 0;
  }
  // 53 bits shifted by up to 31 reach into a third limb.
  const auto first = static_cast<std::size_t>(shift / 32);
  const int within = shift % 32;
  const std::uint64_t low = (mantissa & kLimbMask) << within;
  const std::uint64_t high = (mantissa >> 32) << within;
  limbs[first] += static_cast<std::int64_t>(low & kLimbMask);
  limbs[first + 1] += static_cast<std::int64_t>((low >> 32) + (high & kLimbMask));
  limbs[first + 2] += static_cast<std::int64_t>(high >> 32);
  carry(limbs, first, first + 2);
}

void ExactSum::normalize() { carry(limbs, 0, limbs.size()); }

double ExactSum::value() const {
  ExactSum n = *this;
  n.normalize();
  int top = kLimbs - 1;
  while (top > 0 && n.limbs[static_cast<std::size_t>(top)] == 0) --top;
  // 64 bits from the leading one on, and whether anything lies below them.
  const auto limb = [&n](int i) { return i < 0 ? std::uint64_t{0} : static_cast<std::uint64_t>(n.limbs[static_cast<std::size_t>(i)]); };
  std::uint64_t window = limb(top) << 32 | limb(top - 1);
  if (window == 0) return 0.0;
  const int zeros = std::countl_zero(window);  // 0 to 31: the top limb is not 0
  window = window << zeros | limb(top - 2) >> (32 - zeros);
  bool below = (limb(top - 2) << zeros & kLimbMask) != 0;
  for (int i = top - 3; i >= 0 && !below; --i) below = limb(i) != 0;
  // To 53 bits: half of the last place is bit 10, what is below it only breaks ties.
  const std::uint64_t dropped = window & 0x7ffu;
  std::uint64_t mantissa = window >> 11;
  const bool above_half = dropped > 0x400u || (dropped == 0x400u && below);
  if (above_half || (dropped == 0x400u && (mantissa & 1u) != 0)) ++mantissa;
  return std::ldexp(static_cast<double>(mantissa), 32 * (top - 1) - zeros + 11 - kLowestExponent);
}

}  // namespace tessera::shard
