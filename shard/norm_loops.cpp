// The norm's loops, for each instruction set.
#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "shard/flat_layout.h"
#include "shard/norm.h"
#include "tessera/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/norm_loops.cpp"
#include "core/each_isa.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::shard {
namespace HWY_NAMESPACE {
namespace {

constexpr int kLanes = 16;  // part of the result's definition: element i of a block is added to lane i % 16
constexpr std::int32_t kInfinityBits = 0x7f800000;

// The sums of |y|^p in each lane. A float's square has at most 48 significant bits, so that one rounding (a fused multiply and add) and
// two give the same bits.
#if HWY_TARGET == HWY_SCALAR
template <int kP>
void sum_lanes(const float* y, std::int64_t count, double* lanes) {
  double sums[kLanes] = {};
  for (std::int64_t i = 0; i < count; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      const auto d = static_cast<double>(y[i + l]);
      sums[l] += kP == 2 ? d * d : std::fabs(d);
    }
  std::copy_n(sums, kLanes, lanes);
}
#else
// Written out, because compilers load eight floats and widen the upper half of a register, at twice the instructions.
template <int kP>
void sum_lanes(const float* y, std::int64_t count, double* lanes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<double, 8> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  constexpr int kAtOnce = hn::MaxLanes(wide);
  hn::Vec<decltype(wide)> sums[kLanes / kAtOnce];
  for (auto& sum : sums) sum = hn::Zero(wide);
  for (std::int64_t i = 0; i < count; i += kLanes)
    for (int v = 0; v < kLanes / kAtOnce; ++v) {
      const auto d = hn::PromoteTo(wide, hn::Load(narrow, y + i + v * kAtOnce));
      if constexpr (kP == 2) sums[v] = hn::MulAdd(d, d, sums[v]);
      else sums[v] = hn::Add(sums[v], hn::Abs(d));
    }
  for (int v = 0; v < kLanes / kAtOnce; ++v) hn::Store(sums[v], wide, lanes + v * kAtOnce);
}
#endif

/// The sum of one block. Lanes and tree are fixed, so vector width does not show in the bits. Not finite exactly where some y is
/// not: 1,024 squares of finite floats stay below 2^266.
template <int kP>
double block_sum(const float* gradients, std::int64_t count, float scale) {
  alignas(64) float scaled[kBlock];
  alignas(64) double lanes[kLanes];
  for (std::int64_t i = 0; i < count; ++i) scaled[i] = gradients[i] * scale;
  for (std::int64_t i = count; i % kLanes != 0; ++i) scaled[i] = 0.0f;  // adds +0 to sums that are not negative: no bit changes
  sum_lanes<kP>(scaled, count, lanes);
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

void add_powers(ExactSum& sum, const float* gradients, Elements count, float scale, int p) {
  if (p == 2) add_blocks<2>(sum, gradients, count.value, scale);
  else add_blocks<1>(sum, gradients, count.value, scale);
}

float largest_of(const float* gradients, Elements count, float scale, std::int64_t& non_finite) {
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

}  // namespace HWY_NAMESPACE
}  // namespace tessera::shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::shard {

void add_norm(ExactSum& sum, const float* gradients, Elements count, float scale, int p) {
  if (p != 1 && p != 2) throw UsageError(fmt::format("the norm's power is 1 or 2, not {}; the largest element is max_norm's", p));
  TESSERA_FOR_ISA(add_powers)(sum, gradients, count, scale, p);
}

float max_norm(const float* gradients, Elements count, float scale, std::int64_t& non_finite) {
  return TESSERA_FOR_ISA(largest_of)(gradients, count, scale, non_finite);
}

}  // namespace tessera::shard
#endif
