// Forward and backward passes of one micro-batch through an engine: leases around the arithmetic of block.h and embedding.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "examples/gpt/activations.h"
#include "examples/gpt/block.h"
#include "tessera/engine.h"
#include "tessera/models/gpt.h"

namespace gpt {

class Model {
 public:
  /// Neither is owned; both live longer.
  Model(tessera::Engine& engine, const tessera::GptModel& description, std::int64_t micro_batch);

  /// One leaf. `inputs` and `targets`: micro_batch x context token ids. Returns the sum of the token losses, in nats.
  double train_leaf(const std::int32_t* inputs, const std::int32_t* targets);

  /// Leases every unit as a forward pass does; on ranks that pass tokens (one sequence of `context`), writes the logits that follow
  /// position `last` into `logits`. The others pass null. Inside an evaluation scope.
  void predict(const std::int32_t* tokens, std::int64_t last, float* logits);

  const tessera::GptModel& description() const { return description_; }
  tessera::Bytes activation_bytes() const { return activations_.bytes(); }
  /// Spent in arithmetic since construction, waiting for peers not included.
  std::chrono::steady_clock::duration compute_time() const { return compute_; }

 private:
  tessera::Engine& engine_;
  const tessera::GptModel& description_;
  Activations activations_;
  std::vector<BlockNames> names_;  ///< made once: a step builds no strings
  std::chrono::steady_clock::duration compute_{};
};

}  // namespace gpt
