// The learning rate of each step: linear warm-up, then half a cosine down to the minimum.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace gpt {

struct Schedule {
  double peak = 1e-3;
  double minimum = 1e-4;
  std::int64_t warmup = 0;
  std::int64_t steps = 100;

  /// `step` counts from 0.
  double at(std::int64_t step) const {
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
    return minimum + 0.5 * (peak - minimum) * (1.0 + std::cos(std::numbers::pi * done));
  }
};

}  // namespace gpt
