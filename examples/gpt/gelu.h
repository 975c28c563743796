// GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415): y = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
#pragma once

#include <cstdint>

namespace gpt {

void gelu_forward(const float* x, std::int64_t count, float* y);

/// Multiplies `d` by the derivative at x, then overwrites x by gelu(x): both come from the same tanh.
void gelu_backward(float* x, std::int64_t count, float* d);

}  // namespace gpt
