#include "examples/gpt/embedding.h"

#include <algorithm>
#include <cmath>

#include "examples/gpt/layer_norm.h"
#include "examples/gpt/matrix.h"

namespace gpt {
namespace {

ConstMatrixView read(const float* data, std::int64_t rows, std::int64_t columns) { return matrix(data, rows, columns); }

// Turns a row of logits into exp(logit - largest); returns the loss of `target` and 1/sum through `inverse_sum`.
double soften(float* logits, std::int64_t vocab, std::int32_t target, float& inverse_sum) {
  auto row = array(logits, vocab);
  const float largest = row.maxCoeff();
  const float of_target = logits[target];
  row = (row - largest).exp();
  const float sum = row.sum();
  inverse_sum = 1.0f / sum;
  return std::log(static_cast<double>(sum)) + static_cast<double>(largest) - static_cast<double>(of_target);
}

}  // namespace

void embed_forward(const Shape& shape, const std::int32_t* tokens, const float* wte, const float* wpe, float* result) {
  const std::int64_t c = shape.width;
  for (std::int64_t i = 0; i < shape.tokens(); ++i) {
    array(result + i * c, c) = array(wte + tokens[i] * c, c) + array(wpe + (i % shape.context) * c, c);
  }
}

void embed_backward(const Shape& shape, const std::int32_t* tokens, const float* gradient, float* dwte, float* dwpe) {
  const std::int64_t c = shape.width;
  for (std::int64_t i = 0; i < shape.tokens(); ++i) {
    if (dwte != nullptr) array(dwte + tokens[i] * c, c) += array(gradient + i * c, c);
    if (dwpe != nullptr) array(dwpe + (i % shape.context) * c, c) += array(gradient + i * c, c);
  }
}

void head_norm(const Shape& shape, const HeadWeights& w, const float* x, float* statistics, const Scratch& scratch) {
  layer_norm_forward(x, w.ln_f_weight, w.ln_f_bias, shape.tokens(), shape.width, statistics, scratch.normalized);
}

double head_loss_and_gradient(const Shape& shape, const std::int32_t* targets, const HeadWeights& w, const HeadGradients& g, const float* x,
                              const float* statistics, const Scratch& scratch, float* gradient) {
  const std::int64_t n = shape.tokens();
  const std::int64_t c = shape.width;
  const std::int64_t v = shape.vocab;
  double loss = 0.0;
  for (std::int64_t first = 0; first < n; first += scratch.logit_rows) {
    const std::int64_t rows = std::min(scratch.logit_rows, n - first);
    const auto y = read(scratch.normalized + first * c, rows, c);
    multiply(y, read(w.wte, v, c).transpose(), matrix(scratch.scores, rows, v));
    for (std::int64_t i = 0; i < rows; ++i) {
      float* row = scratch.scores + i * v;
      float inverse_sum = 0.0f;
      loss += soften(row, v, targets[first + i], inverse_sum);
      array(row, v) *= inverse_sum;
      row[targets[first + i]] -= 1.0f;
    }
    const auto dlogits = read(scratch.scores, rows, v);
    multiply(dlogits, read(w.wte, v, c), matrix(scratch.narrow + first * c, rows, c));
    if (g.wte != nullptr) multiply_add(dlogits.transpose(), y, matrix(g.wte, v, c));
  }
  array(gradient, n * c).setZero();
  layer_norm_backward(x, w.ln_f_weight, statistics, n, c, scratch.narrow, gradient, g.ln_f_weight, g.ln_f_bias);
  return loss;
}

void head_logits(const Shape& shape, const HeadWeights& w, const float* x, std::int64_t row, const Scratch& scratch, float* logits) {
  const std::int64_t c = shape.width;
  float statistics[2];
  layer_norm_forward(x + row * c, w.ln_f_weight, w.ln_f_bias, 1, c, statistics, scratch.normalized);
  multiply(read(scratch.normalized, 1, c), read(w.wte, shape.vocab, c).transpose(), matrix(logits, 1, shape.vocab));
}

}  // namespace gpt
