// Causal self-attention over the queries, keys and values of a micro-batch, one head at a time and a few rows of scores at a time.
// Probabilities are not kept: the backward pass computes them again from each row's log-sum-exp.
#pragma once

#include "examples/gpt/activations.h"

namespace gpt {

/// `qkv` is N x 3C: queries, keys, values, each with the heads side by side. Writes `attended` (N x C) and `log_sum_exp`
/// (sequences · heads x context). `scores`: kGptScoreRows x context values of scratch.
void attention_forward(const Shape& shape, const float* qkv, float* log_sum_exp, float* attended, float* scores);

/// From the gradient by `attended` to `dqkv` (N x 3C, overwritten). `scores`: 2 · kGptScoreRows x context values of scratch.
void attention_backward(const Shape& shape, const float* qkv, const float* log_sum_exp, const float* attended, const float* dattended,
                        float* dqkv, float* scores);

}  // namespace gpt
