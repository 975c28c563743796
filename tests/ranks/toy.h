// A model without meaning whose gradients depend on weights, leaf and element, with values whose sum depends on the order of addition. What
// an engine makes of it on W ranks is compared, bit for bit, with what the same engine makes of it on one.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine.h"

namespace tessera::testing {

/// A counter-based value in (-1, 1), many magnitudes wide.
inline float noise(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ull ^ b * 0xbf58476d1ce4e5b9ull ^ c * 0x94d049bb133111ebull;
  for (int i = 0; i < 2; ++i) x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull, x ^= x >> 27;
  const float mantissa = static_cast<float>(static_cast<std::int64_t>(x >> 40)) / static_cast<float>(1 << 24) - 0.5f;
  const float scale[] = {1.0f, 1e-3f, 30.0f, 0.1f};
  return mantissa * scale[x & 3u];
}

struct Toy {
  ModelSpec spec;
  std::vector<UnitId> forward;  // the order of use; the backward is its reverse
};

/// An embedding used twice, three blocks with odd sizes, a unit smaller than the world, an empty tensor, frozen tensors.
inline Toy toy_model(bool with_order = true) {
  Toy toy;
  const UnitId embed = toy.spec.unit("embed").tensor("wte", {37, 41}).uses(2);
  toy.forward.push_back(embed);
  for (int i = 0; i < 3; ++i) {
    toy.forward.push_back(toy.spec.unit("h." + std::to_string(i))
                              .tensor("none", {0, 7})
                              .tensor("weight", {67, 71 + i})
                              .tensor("frozen", {13, 11}, DType::f32, Training::frozen)
                              .tensor("bias", {71 + i}));
  }
  toy.forward.push_back(toy.spec.unit("scale").tensor("s", {3}));
  toy.forward.push_back(embed);
  if (with_order) toy.spec.order(toy.forward);
  return toy;
}

inline void fill_toy(const TensorPiece& piece) {
  std::span<float> v = piece.values();
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = noise(static_cast<std::uint64_t>(piece.unit.value) + 1, std::hash<std::string>{}(piece.tensor.name),
                 static_cast<std::uint64_t>(piece.begin.value) + i);
}

/// One leaf: forward reads every unit, backward adds gradients that depend on the weights read.
inline void run_toy_leaf(Engine& engine, const std::vector<UnitId>& forward, std::uint64_t leaf) {
  float carry = 0.0f;
  for (const UnitId u : forward) {
    const ParameterLease w = engine.gather(u);
    for (const TensorSpec& t : engine.spec()[u].tensors)
      if (t.elements() > Elements(0)) carry = carry * 0.5f + w[t.name][static_cast<std::size_t>(t.elements().value) / 2];
  }
  int use = 0;
  for (auto it = forward.rbegin(); it != forward.rend(); ++it, ++use) {
    const ParameterLease w = engine.gather(*it, Phase::backward);
    const GradientLease g = engine.gradients(*it);
    for (const TensorSpec& t : engine.spec()[*it].tensors) {
      if (!g.wants(t.name)) continue;
      const std::span<const float> weight = w[t.name];
      const std::span<float> gradient = g[t.name];
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] +=
            noise(leaf * 16 + static_cast<std::uint64_t>(use), static_cast<std::uint64_t>(it->value), i) * (1.0f + 0.1f * weight[i]) +
            1e-3f * carry;
    }
  }
}

/// All weights of the model, unit by unit, as every rank sees them.
inline std::vector<float> all_weights(Engine& engine) {
  std::vector<float> all;
  for (std::size_t u = 0; u < engine.spec().units().size(); ++u) {
    const ParameterLease w = engine.gather(UnitId(static_cast<int>(u)));
    for (const TensorSpec& t : engine.spec().units()[u].tensors) {
      const std::span<const float> v = w[t.name];
      all.insert(all.end(), v.begin(), v.end());
    }
  }
  return all;
}

struct ToyRun {
  std::vector<float> weights;
  std::vector<double> norms;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  return true;
}

/// `steps` steps of `leaves` leaves, shared out over the ranks of `world`.
inline ToyRun run_toy(const World& world, const Toy& toy, Options options, int leaves, int steps, StepOptions step = {.clip_norm = 1.0}) {
  options.micro_batches = leaves / world.size();
  Engine engine(world, toy.spec, options);
  engine.initialize(fill_toy);
  ToyRun run;
  for (int s = 0; s < steps; ++s) {
    for (int a = 0; a < options.micro_batches; ++a) {
      const MicroBatch leaf = engine.micro_batch();
      run_toy_leaf(engine, toy.forward, static_cast<std::uint64_t>(s * leaves + a * world.size() + world.rank().value));
    }
    run.norms.push_back(engine.step(step).gradient_norm);
  }
  run.weights = all_weights(engine);
  return run;
}

/// The same on one rank.
inline ToyRun run_toy_alone(const Toy& toy, const Options& options, int leaves, int steps, StepOptions step = {.clip_norm = 1.0}) {
  std::vector<World> alone = thread_world(1);
  return run_toy(alone.front(), toy, options, leaves, steps, step);
}

}  // namespace tessera::testing
