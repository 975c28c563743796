// The memory one micro-batch is computed in: a single aligned allocation made before training, so that no step allocates.
// Laid out from tessera::gpt_activations(), which the planner reads too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "tessera/models/gpt.h"

namespace gpt {

/// Sizes of a forward or backward pass. Matrices are row-major with one row for each token, sequences one after the other.
struct Shape {
  std::int64_t sequences = 1;
  std::int64_t context = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t vocab = 0;

  std::int64_t tokens() const { return sequences * context; }
  std::int64_t head_width() const { return width / heads; }
};

/// What a block keeps from forward to backward. N tokens, width C, H heads.
struct BlockActivations {
  float* input = nullptr;        ///< N x C
  float* qkv = nullptr;          ///< N x 3C
  float* log_sum_exp = nullptr;  ///< (sequences · H) x context
  float* attended = nullptr;     ///< N x C
  float* middle = nullptr;       ///< N x C
  float* hidden = nullptr;       ///< N x 4C; overwritten by the backward pass
  float* statistics = nullptr;   ///< 2 x N for ln_1, then 2 x N for ln_2
};

/// What every block uses again.
struct Scratch {
  float* normalized = nullptr;  ///< N x C
  float* narrow = nullptr;      ///< N x C
  float* wide = nullptr;        ///< N x 4C
  float* scores = nullptr;      ///< attention scores of a few rows, or logits of a few tokens
  std::int64_t logit_rows = 0;  ///< tokens whose logits fit into `scores`
};

class Activations {
 public:
  /// For micro-batches of `sequences`.
  Activations(const tessera::GptConfig& config, std::int64_t sequences);

  const Shape& shape() const { return shape_; }
  const std::vector<BlockActivations>& blocks() const { return blocks_; }
  const Scratch& scratch() const { return scratch_; }
  float* output() const { return output_; }                        ///< N x C, of the last block
  float* output_statistics() const { return output_statistics_; }  ///< 2 x N, of the final norm
  float* stream_gradient() const { return stream_gradient_; }      ///< N x C
  /// Where block `i` writes its result: the next block's input, or output().
  float* result_of(std::size_t i) const { return i + 1 < blocks_.size() ? blocks_[i + 1].input : output_; }
  tessera::Bytes bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  Shape shape_;
  tessera::Bytes bytes_{};
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<BlockActivations> blocks_;
  Scratch scratch_;
  float* output_ = nullptr;
  float* output_statistics_ = nullptr;
  float* stream_gradient_ = nullptr;
};

}  // namespace gpt
