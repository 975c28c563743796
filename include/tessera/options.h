// Everything an Engine can be told, as values. Each field says its unit, its default and what a larger value costs.
// Options must be equal on all ranks (but for the observer); the constructor compares them and throws UsageError on every rank where they
// are not.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/communicator.h"
#include "tessera/model_spec.h"
#include "tessera/optimizer.h"
#include "tessera/types.h"

namespace tessera {

/// What is sharded (ZeRO, arXiv 1910.02054). Each stage includes those before it.
enum class Stage : std::uint8_t {
  none = 0,        ///< nothing: every rank holds everything
  moments = 1,     ///< optimizer state
  gradients = 2,   ///< and gradients
  parameters = 3,  ///< and parameters
};

/// What step() does when the gradient holds NaN or infinity anywhere on any rank.
enum class NonFinite : std::uint8_t {
  skip,   ///< change nothing on any rank, say so in StepResult
  raise,  ///< the same, then throw RuntimeFailure on every rank
  apply,  ///< update all the same
};

/// How the optimizer treats one tensor.
struct TensorGroup {
  float learning_rate_scale = 1.0f;  ///< times StepOptions::learning_rate
  bool decay = true;                 ///< false: no weight decay
};

/// Values to watch a run by. Called on worker threads too: implementations lock what they share. Must not call the engine; what they throw
/// is dropped.
class TESSERA_API Observer {
 public:
  virtual ~Observer() = default;
  /// A collective ended.
  virtual void operation(const OperationRecord& record) { (void)record; }
  /// This rank spent [begin, end) on `what` ("leaf", "wait gather", "optimizer" ...), for `unit` if any.
  virtual void span(std::string_view what, UnitId unit, std::chrono::steady_clock::time_point begin,
                    std::chrono::steady_clock::time_point end) {
    (void)what, (void)unit, (void)begin, (void)end;
  }
};

struct Options {
  /// What is sharded. A higher stage usually holds less (not for tiny models: docs/memory.md). With k micro-batches a step, stage 3 sends
  /// at most 3k/(k+1) times what stages 0 to 2 do.
  Stage stage = Stage::parameters;

  /// Arithmetic and hyperparameters of the update. State costs moments_per_element(optimizer) * 4 bytes per element.
  Optimizer optimizer = AdamW{};

  /// Per tensor; the same answer on every rank. Empty: no decay on tensors of fewer than two dimensions, scale 1.
  std::function<TensorGroup(const TensorSpec&)> groups{};

  /// Most micro-batches (leaves) per rank and step. Above 1, stages 0 and 1 hold another 4/W bytes per trainable element (the sum over
  /// leaves), and stages 2 and 3 need gradient slots at W = 1 too. One leaf more than this is a UsageError.
  int micro_batches = 1;

  /// Most parameter leases of different units alive at once, prefetched units included. Each slot holds the largest unit.
  int parameter_slots = 2;

  /// How many units ahead of the caller gathers start; never more than the slots allow. 0 turns prefetch off.
  int prefetch = 1;

  /// Most units whose gradients are being computed or reduced at once. 1 makes each reduction wait for the one before.
  int gradient_slots = 2;

  /// Most bytes of all categories on this rank together; 0 is no limit. Slots are given up to keep it (the choice is in
  /// MemoryForecast::decisions); a budget that one slot of each kind cannot keep is a UsageError that says the smallest that would do.
  Bytes memory_budget{};

  /// From the submission of a collective to CommFailure when a peer does not come; time queued behind earlier ones counts. Longer tolerates
  /// slower peers. Replaces TransportOptions::deadline for this engine.
  std::chrono::milliseconds deadline{60'000};

  /// See NonFinite.
  NonFinite non_finite = NonFinite::skip;

  /// Watches the run; may be empty.
  std::shared_ptr<Observer> observer{};
};

/// Which norm of the gradient is taken.
enum class NormType : std::uint8_t { one, two, infinity };

struct StepOptions {
  float learning_rate = 1e-3f;
  /// Multiplies every gradient once, in fp32, before norm and update: 1 / (tokens or samples of all ranks). Gradients are summed, never
  /// averaged.
  double gradient_scale = 1.0;
  /// The norm above which gradients are scaled down by clip_norm / (norm + 1e-6); 0 is off.
  double clip_norm = 0.0;
  NormType norm = NormType::two;
};

struct StepResult {
  bool applied = false;        ///< false: nothing changed on any rank
  std::string reason{};        ///< why not: how many elements of the sum are NaN or infinite, in which ranks' shards
  double gradient_norm = 0.0;  ///< of the scaled gradient over all trainable elements, before clipping; the same on every rank
  double clip_factor = 1.0;
  std::int64_t step = 0;  ///< steps applied so far, this one included
  int leaves = 0;         ///< micro-batches of all ranks that went into it
};

}  // namespace tessera
