#include "examples/gpt/layer_norm.h"

#include <cmath>

#include "examples/gpt/matrix.h"

namespace gpt {

void layer_norm_forward(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t width, float* statistics,
                        float* y) {
  const float count = static_cast<float>(width);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto row = array(x + i * width, width);
    const float mean = row.sum() / count;
    const float variance = (row - mean).square().sum() / count;
    statistics[i] = mean;
    statistics[rows + i] = 1.0f / std::sqrt(variance + kLayerNormEpsilon);
  }
  layer_norm_again(x, weight, bias, rows, width, statistics, y);
}

void layer_norm_again(const float* x, const float* weight, const float* bias, std::int64_t rows, std::int64_t width,
                      const float* statistics, float* y) {
  const auto w = array(weight, width);
  const auto b = array(bias, width);
  for (std::int64_t i = 0; i < rows; ++i) {
    array(y + i * width, width) = (array(x + i * width, width) - statistics[i]) * statistics[rows + i] * w + b;
  }
}

void layer_norm_backward(const float* x, const float* weight, const float* statistics, std::int64_t rows, std::int64_t width, float* dy,
                         float* dx, float* dweight, float* dbias) {
  const float count = static_cast<float>(width);
  const auto w = array(weight, width);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float mean = statistics[i];
    const float scale = statistics[rows + i];
    const auto xhat = (array(x + i * width, width) - mean) * scale;
    auto d = array(dy + i * width, width);
    if (dbias != nullptr) array(dbias, width) += d;
    if (dweight != nullptr) array(dweight, width) += d * xhat;
    d *= w;  // from here on the gradient by xhat
    const float mean_d = d.sum() / count;
    const float mean_d_xhat = (d * xhat).sum() / count;
    array(dx + i * width, width) += (d - mean_d - xhat * mean_d_xhat) * scale;
  }
}

}  // namespace gpt
