// One optimizer step over a range of a shard. Pure arithmetic on local memory; every element is independent of every other, so the same
// element gives the same bits on any rank, in any range.
#pragma once

#include <cstdint>

#include "tessera/optimizer.h"
#include "tessera/types.h"

namespace tessera::shard {

/// A step's numbers that do not depend on the element.
struct OptimizerStep {
  float learning_rate = 0.0f;
  std::int64_t step = 1;        ///< of these tensors, from 1: bias correction
  bool decay = true;            ///< false: weight_decay counts as 0
  float gradient_scale = 1.0f;  ///< y = gradient * gradient_scale, rounded to fp32 ...
  float clip_factor = 1.0f;     ///< ... and the optimizer sees y * clip_factor, rounded to fp32
};

/// Memory of one range, fp32. `moments[i]` is the i-th state vector of moments_per_element(optimizer), in this order:
/// AdamW/Adam: m, v, (amsgrad: the maximum of v); Sgd: momentum buffer; Adagrad: sum of squares; Lion: m.
struct OptimizerRange {
  float* parameters = nullptr;
  const float* gradients = nullptr;
  float* moments[3] = {nullptr, nullptr, nullptr};
  Elements count{};
};

/// Throws UsageError naming optimizer, field and value: betas and momentum lie in [0, 1), eps and decay are finite and not negative,
/// Nesterov needs momentum.
void check(const Optimizer& optimizer);

/// State starts as zeros. Hyperparameters are the fp32 values given, not the decimals they were written as (0.999f is 0.99900001): Adam's
/// second moment then differs from PyTorch's by 1.3e-5, relative, and its bias correction by as much, so that the update does not.
void update(const Optimizer& optimizer, const OptimizerStep& step, const OptimizerRange& range);

}  // namespace tessera::shard
