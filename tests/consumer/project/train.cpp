#include "train.h"

#include <tessera/engine.h>

#include <cmath>

bool train(tessera::World& world) {
  constexpr int kInputs = 5;
  tessera::ModelSpec spec;
  const tessera::UnitId line = spec.unit("line").tensor("w", {kInputs}).tensor("b", {1});
  tessera::Engine engine(world, spec, {.stage = tessera::Stage::parameters, .optimizer = tessera::AdamW{.weight_decay = 0.0f}});
  engine.initialize([](const tessera::TensorPiece& piece) {
    for (float& value : piece.values()) value = 0.0f;
  });

  double loss = 0.0;
  for (int step = 0; step < 200; ++step) {
    double error = 0.0;
    {
      auto leaf = engine.micro_batch();
      auto parameters = engine.gather(line);
      auto gradients = engine.gradients(line);
      const auto w = parameters["w"];
      const auto dw = gradients["w"];
      for (int sample = 0; sample < 8; ++sample) {
        float x[kInputs];
        float y = parameters["b"][0];
        float wanted = 0.5f;
        for (int i = 0; i < kInputs; ++i) {
          const int seed = (sample + 8 * world.rank().value) * kInputs + i;
          x[i] = std::sin(static_cast<float>(seed * seed));
          y += w[static_cast<std::size_t>(i)] * x[i];
          wanted += static_cast<float>(i) * 0.25f * x[i];
        }
        for (int i = 0; i < kInputs; ++i) dw[static_cast<std::size_t>(i)] += (y - wanted) * x[i];
        gradients["b"][0] += y - wanted;
        error += 0.5 * (y - wanted) * (y - wanted);
      }
    }
    const double samples = engine.sum(8.0);
    loss = engine.sum(error) / samples;
    engine.step({.learning_rate = 0.05f, .gradient_scale = 1.0 / samples});
  }
  return loss < 1e-3;
}
