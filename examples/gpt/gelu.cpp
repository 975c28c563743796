#include "examples/gpt/gelu.h"

#include <algorithm>

#include "examples/gpt/matrix.h"

namespace gpt {
namespace {
constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;
constexpr std::int64_t kPiece = 1024;  // elements whose tanh stays in the cache
}  // namespace

void gelu_forward(const float* x, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; i += kPiece) {
    const std::int64_t n = std::min(kPiece, count - i);
    const auto v = array(x + i, n);
    array(y + i, n) = 0.5f * v * (1.0f + (kSqrtTwoOverPi * (v + kCubic * v * v * v)).tanh());
  }
}

void gelu_backward(float* x, std::int64_t count, float* d) {
  alignas(64) float tanh_of[kPiece];
  for (std::int64_t i = 0; i < count; i += kPiece) {
    const std::int64_t n = std::min(kPiece, count - i);
    auto v = array(x + i, n);
    auto t = array(tanh_of, n);
    t = (kSqrtTwoOverPi * (v + kCubic * v * v * v)).tanh();
    array(d + i, n) *= 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * (kSqrtTwoOverPi * (1.0f + 3.0f * kCubic * v * v));
    v = 0.5f * v * (1.0f + t);
  }
}

}  // namespace gpt
