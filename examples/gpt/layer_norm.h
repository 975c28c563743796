// Layer normalization over the last dimension: y = (x - mean) / sqrt(variance + epsilon) * weight + bias.
#pragma once

#include <cstdint>

namespace gpt {

inline constexpr float kLayerNormEpsilon = 1e-5f;

/// `rows` rows of `width`. `statistics` gets the means, then the reciprocals of the deviations: 2 x rows.
void layer_norm_forward(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t width, float* statistics,
                        float* y);

/// y again, from statistics that forward left.
void layer_norm_again(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t width,
                      const float* statistics, float* y);

/// Adds the gradient by x into `dx` and, where not null, the gradients by weight and bias. Overwrites `dy`.
void layer_norm_backward(const float* x, const float* weight, const float* statistics, std::int64_t rows, std::int64_t width, float* dy,
                         float* dx, float* dweight, float* dbias);

}  // namespace gpt
