#include "examples/gpt/block.h"

#include "examples/gpt/attention.h"
#include "examples/gpt/gelu.h"
#include "examples/gpt/layer_norm.h"
#include "examples/gpt/matrix.h"

namespace gpt {
namespace {

ConstMatrixView read(const float* data, std::int64_t rows, std::int64_t columns) { return matrix(data, rows, columns); }

// y = x · w + bias
void linear(const float* x, const float* weight, const float* bias, std::int64_t n, std::int64_t in, std::int64_t out, float* y) {
  multiply(read(x, n, in), read(weight, in, out), matrix(y, n, out));
  add_to_rows(bias, matrix(y, n, out));
}

// Adds to the gradients that are wanted; writes the gradient by x.
void linear_backward(const float* x, const float* weight, const float* dy, std::int64_t n, std::int64_t in, std::int64_t out,
                     float* dweight, float* dbias, float* dx) {
  if (dbias != nullptr) add_row_sums(read(dy, n, out), dbias);
  if (dweight != nullptr) multiply_add(read(x, n, in).transpose(), read(dy, n, out), matrix(dweight, in, out));
  multiply(read(dy, n, out), read(weight, in, out).transpose(), matrix(dx, n, in));
}

}  // namespace

void block_forward(const Shape& shape, const BlockWeights& w, const BlockActivations& keep, const Scratch& scratch, float* result) {
  const std::int64_t n = shape.tokens();
  const std::int64_t c = shape.width;
  layer_norm_forward(keep.input, w.ln_1_weight, w.ln_1_bias, n, c, keep.statistics, scratch.normalized);
  linear(scratch.normalized, w.c_attn_weight, w.c_attn_bias, n, c, 3 * c, keep.qkv);
  attention_forward(shape, keep.qkv, keep.log_sum_exp, keep.attended, scratch.scores);
  linear(keep.attended, w.attn_proj_weight, w.attn_proj_bias, n, c, c, keep.middle);
  array(keep.middle, n * c) += array(keep.input, n * c);

  layer_norm_forward(keep.middle, w.ln_2_weight, w.ln_2_bias, n, c, keep.statistics + 2 * n, scratch.normalized);
  linear(scratch.normalized, w.c_fc_weight, w.c_fc_bias, n, c, 4 * c, keep.hidden);
  gelu_forward(keep.hidden, n * 4 * c, scratch.wide);
  linear(scratch.wide, w.mlp_proj_weight, w.mlp_proj_bias, n, 4 * c, c, result);
  array(result, n * c) += array(keep.middle, n * c);
}

void block_backward(const Shape& shape, const BlockWeights& w, const BlockGradients& g, const BlockActivations& keep,
                    const Scratch& scratch, float* gradient) {
  const std::int64_t n = shape.tokens();
  const std::int64_t c = shape.width;
  float* dhidden = scratch.wide;
  multiply(read(gradient, n, c), read(w.mlp_proj_weight, 4 * c, c).transpose(), matrix(dhidden, n, 4 * c));
  gelu_backward(keep.hidden, n * 4 * c, dhidden);  // keep.hidden becomes the activation
  if (g.mlp_proj_bias != nullptr) add_row_sums(read(gradient, n, c), g.mlp_proj_bias);
  if (g.mlp_proj_weight != nullptr) {
    multiply_add(read(keep.hidden, n, 4 * c).transpose(), read(gradient, n, c), matrix(g.mlp_proj_weight, 4 * c, c));
  }
  layer_norm_again(keep.middle, w.ln_2_weight, w.ln_2_bias, n, c, keep.statistics + 2 * n, scratch.normalized);
  linear_backward(scratch.normalized, w.c_fc_weight, dhidden, n, c, 4 * c, g.c_fc_weight, g.c_fc_bias, scratch.narrow);
  layer_norm_backward(keep.middle, w.ln_2_weight, keep.statistics + 2 * n, n, c, scratch.narrow, gradient, g.ln_2_weight, g.ln_2_bias);

  float* dqkv = scratch.wide;
  linear_backward(keep.attended, w.attn_proj_weight, gradient, n, c, c, g.attn_proj_weight, g.attn_proj_bias, scratch.narrow);
  attention_backward(shape, keep.qkv, keep.log_sum_exp, keep.attended, scratch.narrow, dqkv, scratch.scores);
  layer_norm_again(keep.input, w.ln_1_weight, w.ln_1_bias, n, c, keep.statistics, scratch.normalized);
  linear_backward(scratch.normalized, w.c_attn_weight, dqkv, n, c, 3 * c, g.c_attn_weight, g.c_attn_bias, scratch.narrow);
  layer_norm_backward(keep.input, w.ln_1_weight, keep.statistics, n, c, scratch.narrow, gradient, g.ln_1_weight, g.ln_1_bias);
}

}  // namespace gpt
