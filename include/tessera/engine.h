// The engine: training state sharded over the ranks of a World, reached through leases.
//
//   for each micro-batch:  auto leaf = engine.micro_batch();
//                          { auto w = engine.gather(block);      y = forward(w["weight"], x); }
//                          { auto w = engine.gather(block, Phase::backward);
//                            auto g = engine.gradients(block);   backward(w["weight"], g["weight"], ...); }
//   engine.step({.learning_rate = 1e-3f, .gradient_scale = 1.0 / samples});
//
// Invariants. A step's gradient is the sum over leaves 0, 1, 2 ... in that order, leaf a*W + r being micro-batch a of rank r: the same bits
// for every number of ranks that divides the leaves, and for every stage. Gathered units keep to the slots of the plan. What a lease shows
// is what the last step, set or initialize left.
//
// Every rank makes the same calls in the same order; where ranks differ all of them throw. One thread uses an engine at a time. Leases and
// scopes are destroyed before the engine. Destructors never throw: what they find is thrown by the next call.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/error.h"
#include "tessera/half.h"
#include "tessera/model_spec.h"
#include "tessera/options.h"
#include "tessera/plan.h"
#include "tessera/report.h"
#include "tessera/world.h"

namespace tessera {

enum class Phase : std::uint8_t { forward, backward };

namespace detail {
class EngineImpl;
struct ParameterLeaseState;
struct GradientLeaseState;

template <class T>
constexpr DType dtype_of() {
  using V = std::remove_const_t<T>;
  if constexpr (std::is_same_v<V, float>) return DType::f32;
  else if constexpr (std::is_same_v<V, double>) return DType::f64;
  else if constexpr (std::is_same_v<V, bf16>) return DType::bf16;
  else if constexpr (std::is_same_v<V, f16>) return DType::f16;
  else if constexpr (std::is_same_v<V, std::int64_t>) return DType::i64;
  else {
    static_assert(std::is_same_v<V, std::uint8_t>, "no tensor has this element type");
    return DType::u8;
  }
}
/// Throws UsageError unless the tensor has the type asked for.
TESSERA_API void check_dtype(const TensorSpec& tensor, DType asked);
}  // namespace detail

/// A range of one tensor to be filled: elements [begin, begin + count) of the flattened (row-major) tensor.
struct TensorPiece {
  UnitId unit{};
  const UnitSpec& unit_spec;
  const TensorSpec& tensor;
  Elements begin{};
  Elements count{};
  void* data = nullptr;

  /// The values to write; T is the tensor's element type, else UsageError.
  template <class T = float>
  std::span<T> values() const {
    detail::check_dtype(tensor, detail::dtype_of<T>());
    return {static_cast<T*>(data), static_cast<std::size_t>(count.value)};
  }
};
using Fill = std::function<void(const TensorPiece&)>;

/// The right to read a unit's full parameters, until the lease ends. Move-only. Views start on 64-byte boundaries and end with the lease.
class TESSERA_API ParameterLease {
 public:
  ParameterLease(ParameterLease&&) noexcept;
  ParameterLease& operator=(ParameterLease&&) = delete;
  ~ParameterLease();

  UnitId unit() const;
  /// The tensor's elements, row-major, fp32. UsageError names an unknown tensor, another element type, a lease that has ended.
  std::span<const float> operator[](std::string_view tensor) const& { return view<float>(tensor); }
  std::span<const float> operator[](std::string_view tensor) const&& = delete;  ///< the view would outlive its lease
  /// The same for tensors of any element type.
  template <class T>
  std::span<const T> view(std::string_view tensor) const& {
    Elements n{};
    const void* p = find(tensor, detail::dtype_of<T>(), n);
    return {static_cast<const T*>(p), static_cast<std::size_t>(n.value)};
  }
  template <class T>
  std::span<const T> view(std::string_view tensor) const&& = delete;
  void close();  ///< ends the lease before its scope does; throws at once what the destructor would leave to the next call

 private:
  friend class Engine;
  explicit ParameterLease(std::unique_ptr<detail::ParameterLeaseState> state);
  const void* find(std::string_view tensor, DType dtype, Elements& count) const;
  std::unique_ptr<detail::ParameterLeaseState> state_;
};

/// The right to add to a unit's gradients, until the lease ends. Views hold zeros, or what earlier leases of the same leaf added: add,
/// never assign. When the last declared use closes, the unit's reduction over ranks starts.
class TESSERA_API GradientLease {
 public:
  GradientLease(GradientLease&&) noexcept;
  GradientLease& operator=(GradientLease&&) = delete;
  ~GradientLease();

  UnitId unit() const;
  /// The tensor's gradient, row-major, fp32; empty for a frozen tensor. Taking the view gives the tensor a gradient in this leaf.
  /// UsageError names an unknown tensor or an ended lease.
  std::span<float> operator[](std::string_view tensor) const&;
  std::span<float> operator[](std::string_view tensor) const&& = delete;
  /// Whether the tensor takes a gradient. Takes nothing itself.
  bool wants(std::string_view tensor) const;
  void close();  ///< as ParameterLease::close()

 private:
  friend class Engine;
  explicit GradientLease(std::unique_ptr<detail::GradientLeaseState> state);
  std::unique_ptr<detail::GradientLeaseState> state_;
};

/// One leaf: one micro-batch of this rank. Gradients are taken inside it. If an exception leaves the scope, nothing more is reduced and all
/// ranks get StepInterrupted.
class TESSERA_API MicroBatch {
 public:
  MicroBatch(MicroBatch&&) noexcept;
  MicroBatch& operator=(MicroBatch&&) = delete;
  ~MicroBatch();
  void close();    ///< ends the leaf; throws at once what the destructor would leave to the next call
  void abandon();  ///< for code that returns errors: unwinds the step as an exception would

 private:
  friend class Engine;
  MicroBatch(detail::EngineImpl* engine, int uncaught);
  detail::EngineImpl* engine_;
  int uncaught_;
};

/// Forward passes between steps, with a plan of their own. No gradients inside. If an exception leaves it, all ranks get StepInterrupted.
class TESSERA_API Evaluation {
 public:
  Evaluation(Evaluation&&) noexcept;
  Evaluation& operator=(Evaluation&&) = delete;
  ~Evaluation();
  void close();

 private:
  friend class Engine;
  Evaluation(detail::EngineImpl* engine, int uncaught);
  detail::EngineImpl* engine_;
  int uncaught_;
};

class TESSERA_API Engine {
 public:
  /// Collective. Plans, compares spec and options between ranks, allocates everything; parameters are zero until initialize().
  /// Throws UsageError (on all ranks) for options that cannot be kept, OutOfMemory, CommFailure.
  Engine(const World& world, ModelSpec spec, Options options = {});
  /// Announces this rank's departure: ranks that wait for its later operations throw CommFailure at once.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Rank rank() const;
  int size() const;
  const ModelSpec& spec() const;
  const Options& options() const;

  /// Collective. Calls `fill` for each tensor range this rank owns, so the whole model exists nowhere; ranks agree on the result even if
  /// their fills do not. UsageError on all ranks where a fill throws, or a scope or lease is open.
  void initialize(const Fill& fill);
  /// Collective. The same for one tensor, between steps. The next gather shows the new values. Errors as initialize().
  void set(UnitId unit, std::string_view tensor, const Fill& fill);

  /// Opens the next leaf of this step. UsageError beyond Options::micro_batches, or while another scope is open.
  [[nodiscard]] MicroBatch micro_batch();
  /// Opens an evaluation scope. UsageError while another scope is open.
  [[nodiscard]] Evaluation evaluation();

  /// Collective at stage 3 unless the unit is still held; blocks until the unit is there. Inside a scope the plan starts it early.
  /// UsageError naming the live leases where no slot is free. `phase` is for traces.
  [[nodiscard]] ParameterLease gather(UnitId unit, Phase phase = Phase::forward);
  /// Local; may wait for an earlier reduction to give its slot back. Inside a micro_batch() only. Needs no gather.
  /// UsageError naming the live gradient leases where no slot is free.
  [[nodiscard]] GradientLease gradients(UnitId unit);

  /// Collective, before step(): this rank's values, one for each leaf in order. Returns the sum over leaves 0, 1, 2 ... of all ranks, in
  /// fp64, the same on all. CommFailure where ranks give different counts.
  double sum(std::span<const double> values);
  double sum(std::initializer_list<double> values) { return sum(std::span<const double>(values.begin(), values.size())); }
  double sum(double value) { return sum(std::span<const double>(&value, 1)); }

  /// Collective. Waits for all reductions; agrees on norm and finiteness; updates this rank's shard. Begins with an arrival of all ranks:
  /// UsageError on all where one has a live lease, an open scope, no leaf, other options, or numbers that cannot be used; leaf counts are
  /// compared there. RuntimeFailure under NonFinite::raise.
  StepResult step(const StepOptions& options);

  /// Collective, after StepInterrupted (or this rank's own exception): drops the step's leaves on all ranks. The caller starts the step
  /// again. CommFailure if a rank has left or does not come within the deadline; UsageError while a scope or lease is open.
  void restart_step();

  /// Operations submitted later get this deadline, for phases known to be long. Local. UsageError unless it is positive.
  void set_deadline(std::chrono::milliseconds deadline);

  std::int64_t steps() const;         ///< applied so far
  MemoryForecast forecast() const;    ///< made at construction
  StepPlan plan() const;              ///< of the next leaf; empty where nothing is known yet or nothing needs gathering
  MemoryBytes memory() const;         ///< the ledger, now
  RankReport report() const;          ///< of this rank
  std::vector<RankReport> reports();  ///< Collective. Of all ranks, on all ranks.
  std::string dump() const;           ///< the last operations of this rank, one a line
  /// Padding elements of this rank's shards, gradients and moments that are not zero: none, ever. For tests.
  Elements dirty_padding() const;
  /// Units whose full parameters are held now though no lease is alive. For tests.
  std::vector<UnitId> gathered() const;

 private:
  std::unique_ptr<detail::EngineImpl> impl_;
};

}  // namespace tessera
