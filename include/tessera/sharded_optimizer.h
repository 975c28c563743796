// The smallest use: a program that has its own full parameters and gradients on every rank replaces its AdamW by this and keeps everything
// else. Moments, master copy and summed gradients are sharded (ZeRO stages 1 and 2); parameters and gradients stay the caller's, whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/options.h"
#include "tessera/report.h"
#include "tessera/world.h"

namespace tessera {

/// One tensor of the caller, fp32, contiguous. Both pointers hold `elements of shape` values and stay valid as long as the optimizer.
struct OwnTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  float* parameters = nullptr;
  const float* gradients = nullptr;
};

class TESSERA_API ShardedOptimizer {
 public:
  /// Collective. Rank 0's parameters become everybody's. `tensors` have the same names and shapes on all ranks (compared).
  /// Beside the caller's tensors each rank holds 1/W of parameters, sums and moments, and two slots each for a group's parameters and
  /// gradients; groups are of about `unit_elements` (smaller ones cost less memory and more messages). Options::stage and micro_batches do
  /// not apply. UsageError on all ranks for tensors without memory, and for tensors or options that differ between ranks.
  ShardedOptimizer(const World& world, std::vector<OwnTensor> tensors, Options options = {}, Elements unit_elements = Elements(1 << 22));
  ~ShardedOptimizer();

  /// Collective. Sums the gradients of all ranks in rank order, scales, clips, updates, and writes the new values into every rank's
  /// parameters. UsageError on all ranks for options that cannot be used or differ between ranks; then nothing has changed. CommFailure.
  StepResult step(const StepOptions& options);
  /// Collective, after StepInterrupted: the ranks meet again and the step may be repeated. CommFailure if a rank does not come.
  void restart_step();
  /// Collective, after the caller has written other values into its parameters (loaded weights): rank 0's become everybody's. Moments stay.
  void reload();
  RankReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
