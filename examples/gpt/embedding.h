// The two ends of the model, which share the matrix wte (vocab x width): tokens to vectors, and vectors to a loss.
#pragma once

#include <cstdint>

#include "examples/gpt/activations.h"

namespace gpt {

/// result (N x C) = wte[token] + wpe[position]. `tokens`: N ids below vocab.
void embed_forward(const Shape& shape, const std::int32_t* tokens, const float* wte, const float* wpe, float* result);

/// Adds into the rows of `dwte` and `dwpe` that were used; null where frozen.
void embed_backward(const Shape& shape, const std::int32_t* tokens, const float* gradient, float* dwte, float* dwpe);

struct HeadWeights {
  const float* ln_f_weight = nullptr;
  const float* ln_f_bias = nullptr;
  const float* wte = nullptr;
};
struct HeadGradients {
  float* ln_f_weight = nullptr;
  float* ln_f_bias = nullptr;
  float* wte = nullptr;
};

/// The final norm of x (N x C), into scratch.normalized; `statistics`: 2 x N.
void head_norm(const Shape& shape, const HeadWeights& w, const float* x, float* statistics, const Scratch& scratch);

/// After head_norm: logits and cross-entropy, for scratch.logit_rows tokens at a time, so that forward and backward are one pass and logits
/// are never kept. Returns the sum of the N token losses in nats, added in order in fp64. Adds to the gradients wanted, of that sum; writes
/// `gradient` (N x C) by x.
double head_loss_and_gradient(const Shape& shape, const std::int32_t* targets, const HeadWeights& w, const HeadGradients& g, const float* x,
                              const float* statistics, const Scratch& scratch, float* gradient);

/// Logits (vocab) that follow token `row` of x.
void head_logits(const Shape& shape, const HeadWeights& w, const float* x, std::int64_t row, const Scratch& scratch, float* logits);

}  // namespace gpt
