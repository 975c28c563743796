#include "examples/gpt/attention.h"

#include <algorithm>
#include <cmath>

#include "examples/gpt/matrix.h"

namespace gpt {
namespace {

constexpr std::int64_t kRows = tessera::kGptScoreRows;

// Where one head of one sequence lies: D columns out of a row.
struct Head {
  std::int64_t row;     // first token
  std::int64_t column;  // first column of its queries, and of its output
};

template <class Body>
void for_each_head(const Shape& shape, const Body& body) {
  for (std::int64_t s = 0; s < shape.sequences; ++s) {
    for (std::int64_t h = 0; h < shape.heads; ++h) body(Head{s * shape.context, h * shape.head_width()}, s * shape.heads + h);
  }
}

// Scores of queries [first, first + rows) by keys [0, first + rows), scaled; row stride is the number of keys.
void compute_scores(const Shape& shape, const float* qkv, Head head, std::int64_t first, std::int64_t rows, float* scores) {
  const std::int64_t stride = 3 * shape.width;
  const auto q = matrix(qkv + (head.row + first) * stride + head.column, rows, shape.head_width(), stride);
  const auto k = matrix(qkv + head.row * stride + shape.width + head.column, first + rows, shape.head_width(), stride);
  auto s = matrix(scores, rows, first + rows);
  multiply(q, k.transpose(), s);
  array(scores, rows * (first + rows)) *= 1.0f / std::sqrt(static_cast<float>(shape.head_width()));
}

}  // namespace

void attention_forward(const Shape& shape, const float* qkv, float* log_sum_exp, float* attended, float* scores) {
  const std::int64_t stride = 3 * shape.width;
  const std::int64_t d = shape.head_width();
  for_each_head(shape, [&](Head head, std::int64_t index) {
    const float* values = qkv + head.row * stride + 2 * shape.width + head.column;
    for (std::int64_t first = 0; first < shape.context; first += kRows) {
      const std::int64_t rows = std::min(kRows, shape.context - first);
      const std::int64_t keys = first + rows;
      compute_scores(shape, qkv, head, first, rows, scores);
      for (std::int64_t i = 0; i < rows; ++i) {
        auto seen = array(scores + i * keys, first + i + 1);
        const float largest = seen.maxCoeff();
        seen = (seen - largest).exp();
        const float sum = seen.sum();
        seen *= 1.0f / sum;
        array(scores + i * keys + first + i + 1, rows - i - 1).setZero();
        log_sum_exp[index * shape.context + first + i] = largest + std::log(sum);
      }
      multiply(matrix(static_cast<const float*>(scores), rows, keys), matrix(values, keys, d, stride),
               matrix(attended + (head.row + first) * shape.width + head.column, rows, d, shape.width));
    }
  });
}

void attention_backward(const Shape& shape, const float* qkv, const float* log_sum_exp, const float* attended, const float* dattended,
                        float* dqkv, float* scores) {
  const std::int64_t stride = 3 * shape.width;
  const std::int64_t d = shape.head_width();
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* dscores = scores + kRows * shape.context;
  array(dqkv, shape.tokens() * stride).setZero();
  for_each_head(shape, [&](Head head, std::int64_t index) {
    const std::int64_t at = head.row * stride + head.column;
    for (std::int64_t first = 0; first < shape.context; first += kRows) {
      const std::int64_t rows = std::min(kRows, shape.context - first);
      const std::int64_t keys = first + rows;
      const std::int64_t out_at = (head.row + first) * shape.width + head.column;
      const auto dout = matrix(dattended + out_at, rows, d, shape.width);
      const auto out = matrix(attended + out_at, rows, d, shape.width);
      compute_scores(shape, qkv, head, first, rows, scores);
      multiply(dout, matrix(qkv + at + 2 * shape.width, keys, d, stride).transpose(), matrix(dscores, rows, keys));
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t seen = first + i + 1;
        auto p = array(scores + i * keys, seen);
        auto ds = array(dscores + i * keys, seen);
        p = (p - log_sum_exp[index * shape.context + first + i]).exp();
        ds = p * (ds - dout.row(i).dot(out.row(i))) * scale;
        array(scores + i * keys + seen, keys - seen).setZero();
        array(dscores + i * keys + seen, keys - seen).setZero();
      }
      const auto p = matrix(static_cast<const float*>(scores), rows, keys);
      const auto ds = matrix(static_cast<const float*>(dscores), rows, keys);
      const auto q = matrix(qkv + at + first * stride, rows, d, stride);
      const auto k = matrix(qkv + at + shape.width, keys, d, stride);
      multiply(ds, k, matrix(dqkv + at + first * stride, rows, d, stride));
      multiply_add(ds.transpose(), q, matrix(dqkv + at + shape.width, keys, d, stride));
      multiply_add(p.transpose(), dout, matrix(dqkv + at + 2 * shape.width, keys, d, stride));
    }
  });
}

}  // namespace gpt
