#include "tessera/sharded_optimizer.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include <fmt/format.h>

#include "tessera/engine.h"

namespace tessera {

// An engine that holds sharded parameters, gradients and moments; the caller's whole tensors are copied in and out, one unit at a time.
struct ShardedOptimizer::Impl {
  Impl(const World& all, std::vector<OwnTensor> own, Options options, Elements unit_elements)
      : tensors(std::move(own)),
        engine(all, describe(all, tensors, unit_elements, first_of_unit), sharded(std::move(options))),
        world(all) {
    reload();
  }

  // Rank 0's values become everybody's, in the caller's tensors and in the shards.
  void reload() {
    broadcast_from_rank_0();
    engine.initialize([&](const TensorPiece& piece) {
      const OwnTensor& t = find(piece);
      std::copy_n(t.parameters + piece.begin.value, piece.count.value, piece.values().data());
    });
  }

  // What one rank cannot accept is refused on all; peers must not wait for it.
  static void agree(const World& world, const std::string& complaint) {
    Stream stream("agree");
    const auto refused = std::make_shared<std::uint8_t>(complaint.empty() ? std::uint8_t{0} : std::uint8_t{1});
    world.communicator().all_reduce({refused.get(), refused}, Elements(1), DType::u8, ReduceOp::max, {}, stream).wait_host();
    if (*refused != 0) throw UsageError(complaint.empty() ? "another rank's tensors were refused; see its message" : complaint);
  }

  static std::string refusal(const std::vector<OwnTensor>& tensors) {
    if (tensors.empty()) return "ShardedOptimizer has no tensors to step";
    for (const OwnTensor& t : tensors) {
      TensorSpec shape;
      shape.name = t.name;
      shape.shape = t.shape;
      try {
        if (shape.elements() > Elements(0) && (t.parameters == nullptr || t.gradients == nullptr))
          return fmt::format("tensor '{}' has {} elements but no memory", t.name, shape.elements().value);
      } catch (const UsageError& e) { return e.what(); }
    }
    return {};
  }

  static Options sharded(Options options) {
    options.stage = Stage::parameters;
    options.micro_batches = 1;
    return options;
  }

  static ModelSpec describe(const World& world, const std::vector<OwnTensor>& tensors, Elements unit_elements,
                            std::vector<std::size_t>& first_of_unit) {
    ModelSpec spec;
    std::string complaint = refusal(tensors);
    try {
      if (complaint.empty()) spec = grouped(tensors, unit_elements, first_of_unit);
    } catch (const std::exception& e) { complaint = e.what(); }  // names and shapes that a spec cannot have
    agree(world, complaint);
    return spec;
  }

  static ModelSpec grouped(const std::vector<OwnTensor>& tensors, Elements unit_elements, std::vector<std::size_t>& first_of_unit) {
    ModelSpec spec;
    Elements in_unit{};
    UnitBuilder* unit = nullptr;
    std::vector<std::unique_ptr<UnitBuilder>> builders;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      TensorSpec shape;
      shape.shape = tensors[i].shape;
      const Elements n = shape.elements();
      if (unit == nullptr || in_unit + n > unit_elements) {
        builders.push_back(std::make_unique<UnitBuilder>(spec.unit(fmt::format("group {}", builders.size()))));
        unit = builders.back().get();
        first_of_unit.push_back(i);
        in_unit = Elements(0);
      }
      unit->tensor(tensors[i].name, tensors[i].shape);
      in_unit += n;
    }
    first_of_unit.push_back(tensors.size());
    return spec;
  }

  const OwnTensor& find(const TensorPiece& piece) const {
    for (std::size_t i = first_of_unit[static_cast<std::size_t>(piece.unit.value)];; ++i)
      if (tensors[i].name == piece.tensor.name) return tensors[i];
  }

  void broadcast_from_rank_0() {
    Stream stream("broadcast");
    for (const OwnTensor& t : tensors) {
      TensorSpec shape;
      shape.shape = t.shape;
      world.communicator().broadcast({t.parameters, {}}, shape.elements(), DType::f32, Rank(0), {}, stream).wait_host();
    }
  }

  StepResult step(const StepOptions& options) {
    {
      const MicroBatch leaf = engine.micro_batch();
      for (std::size_t u = 0; u + 1 < first_of_unit.size(); ++u) {
        const GradientLease g = engine.gradients(UnitId(static_cast<int>(u)));
        for (std::size_t i = first_of_unit[u]; i < first_of_unit[u + 1]; ++i) {
          const std::span<float> view = g[tensors[i].name];
          std::copy_n(tensors[i].gradients, view.size(), view.data());
        }
      }
    }
    const StepResult result = step_or_restart(options);
    if (!result.applied) return result;
    const Evaluation reading = engine.evaluation();
    for (std::size_t u = 0; u + 1 < first_of_unit.size(); ++u) {
      const ParameterLease w = engine.gather(UnitId(static_cast<int>(u)));
      for (std::size_t i = first_of_unit[u]; i < first_of_unit[u + 1]; ++i) {
        const std::span<const float> view = w[tensors[i].name];
        std::copy_n(view.data(), view.size(), tensors[i].parameters);
      }
    }
    return result;
  }

  // What all ranks refuse together leaves nothing behind: the caller corrects it and calls again.
  StepResult step_or_restart(const StepOptions& options) {
    try {
      return engine.step(options);
    } catch (const UsageError&) {
      engine.restart_step();
      throw;
    }
  }

  std::vector<OwnTensor> tensors;
  std::vector<std::size_t> first_of_unit;  // and one past the last tensor
  Engine engine;
  World world;
};

ShardedOptimizer::ShardedOptimizer(const World& world, std::vector<OwnTensor> tensors, Options options, Elements unit_elements)
    : impl_(std::make_unique<Impl>(world, std::move(tensors), std::move(options), unit_elements)) {}
ShardedOptimizer::~ShardedOptimizer() = default;

StepResult ShardedOptimizer::step(const StepOptions& options) { return impl_->step(options); }
void ShardedOptimizer::restart_step() { impl_->engine.restart_step(); }
void ShardedOptimizer::reload() { impl_->reload(); }
RankReport ShardedOptimizer::report() const { return impl_->engine.report(); }

}  // namespace tessera
