#include "shard/norm.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "shard/flat_layout.h"
#include "tessera/error.h"

namespace tessera::shard {
namespace {

constexpr int kLowestExponent = 298;  // limb 0 counts units of 2^-298: the square of the smallest subnormal float
constexpr std::uint32_t kLimbMask = 0xffffffff;
constexpr int kLanes = 16;  // part of the result's definition: element i of a block is added to lane i % 16
constexpr std::int32_t kInfinityBits = 0x7f800000;

/// Moves what is above 32 bits of a limb into the next one, from `first` on.
void carry(std::array<std::int64_t, ExactSum::kLimbs>& limbs, std::size_t first) {
  for (std::size_t i = first; i + 1 < limbs.size(); ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= kLimbMask;
  }
}

/// |y|^p in double, exact: a float's square has at most 48 significant bits.
template <int kP>
double power(float y) {
  const auto d = static_cast<double>(y);
  return kP == 2 ? d * d : std::fabs(d);
}

/// The sum of one block. Lanes and tree are fixed, so vector width does not show in the bits. Not finite exactly where some y is
/// not: 1,024 squares of finite floats stay below 2^266.
template <int kP>
double block_sum(const float* gradients, std::int64_t count, float scale) {
  double lanes[kLanes] = {};
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += power<kP>(gradients[i + l] * scale);
  for (std::int64_t i = whole; i < count; ++i) lanes[i - whole] += power<kP>(gradients[i] * scale);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

std::int64_t count_non_finite(const float* gradients, std::int64_t count, float scale) {
  return std::count_if(gradients, gradients + count, [scale](float g) { return !std::isfinite(g * scale); });
}

template <int kP>
void add_blocks(ExactSum& sum, const float* gradients, std::int64_t count, float scale) {
  for (std::int64_t i = 0; i < count; i += kBlock) {
    const std::int64_t n = std::min(kBlock, count - i);
    const double partial = block_sum<kP>(gradients + i, n, scale);
    if (std::isfinite(partial)) sum.add(partial);
    else sum.non_finite += count_non_finite(gradients + i, n, scale);
  }
}

}  // namespace

void ExactSum::add(double value) {
  if (!(value >= 0.0) || value >= 0x1p306) throw UsageError(fmt::format("an exact sum takes values in [0, 2^306), not {}", value));
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
  if (mantissa == 0) return;
  int shift = exponent - 53 + kLowestExponent;
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
  carry(limbs, first);
}

void ExactSum::normalize() { carry(limbs, 0); }

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

void add_norm(ExactSum& sum, const float* gradients, Elements count, float scale, int p) {
  if (p != 1 && p != 2) throw UsageError(fmt::format("the norm's power is 1 or 2, not {}; the largest element is max_norm's", p));
  if (p == 2) add_blocks<2>(sum, gradients, count.value, scale);
  else add_blocks<1>(sum, gradients, count.value, scale);
}

float max_norm(const float* gradients, Elements count, float scale, std::int64_t& non_finite) {
  // As integers, magnitudes of floats are ordered like the floats, with infinities and NaN above all others.
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count.value; i += kBlock) {
    const std::int64_t end = std::min(count.value, i + kBlock);
    std::int32_t bad = 0;
    for (std::int64_t j = i; j < end; ++j) {
      const std::int32_t magnitude = std::bit_cast<std::int32_t>(gradients[j] * scale) & 0x7fffffff;
      const std::int32_t finite = magnitude < kInfinityBits ? magnitude : 0;
      bad += magnitude < kInfinityBits ? 0 : 1;
      largest = finite > largest ? finite : largest;
    }
    non_finite += bad;
  }
  return std::bit_cast<float>(largest);
}

}  // namespace tessera::shard
