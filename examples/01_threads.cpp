// Trains a small network on four ranks that share its parameters, gradients and Adam moments between them: each holds a quarter of the
// large layer; layers too small to shard stay whole. 01_threads.cpp runs the ranks as threads of one program, 02_mpi.cpp as processes under
// mpirun; three lines differ.
//
//   build/examples/01_threads
//   mpirun -np 4 build/examples/02_mpi
//
// The network learns f(x, y) = sin(3x) y from random points of the square [-1, 1]².
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/world.h"

using Numbers = std::vector<float>;   // one row per point, row after row
using View = std::span<const float>;  // parameters of a layer, as a lease shows them
constexpr int kPoints = 64;           // per step, all ranks together; a multiple of the ranks
constexpr int kSteps = 400;

// result = x · weight + bias, through tanh unless this is the last layer.
Numbers forward(const Numbers& x, View weight, View bias, bool last) {
  const std::size_t outs = bias.size(), ins = weight.size() / outs, rows = x.size() / ins;
  Numbers result(rows * outs);
  for (std::size_t r = 0; r < rows; ++r) {
    float* row = &result[r * outs];
    for (std::size_t o = 0; o < outs; ++o) row[o] = bias[o];
    for (std::size_t i = 0; i < ins; ++i)
      for (std::size_t o = 0; o < outs; ++o) row[o] += x[r * ins + i] * weight[i * outs + o];
    for (std::size_t o = 0; o < outs && !last; ++o) row[o] = std::tanh(row[o]);
  }
  return result;
}

// From the gradient by a layer's sums to the gradient by its input x. Adds to the gradients of weight and bias.
Numbers backward(const Numbers& x, const Numbers& gradient, View weight, std::span<float> weight_gradient, std::span<float> bias_gradient) {
  const std::size_t outs = bias_gradient.size(), ins = weight.size() / outs, rows = x.size() / ins;
  Numbers by_input(x.size());
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = &gradient[r * outs];
    for (std::size_t o = 0; o < outs; ++o) bias_gradient[o] += row[o];
    for (std::size_t i = 0; i < ins; ++i) {
      for (std::size_t o = 0; o < outs; ++o) weight_gradient[i * outs + o] += x[r * ins + i] * row[o];
      for (std::size_t o = 0; o < outs; ++o) by_input[r * ins + i] += row[o] * weight[i * outs + o];
    }
  }
  return by_input;
}

// A number in [-1, 1] that depends on `index` alone: the ranks agree on it without talking, however many they are.
float scatter(int index) { return static_cast<float>(std::remainder(index * 0.6180339887498949, 1.0) * 2.0); }

void train(const tessera::World& world) {
  // 1. The model as data. A unit is what is gathered and released together: here a layer.
  tessera::ModelSpec spec;
  std::vector<tessera::UnitId> layers;
  const std::int64_t widths[] = {2, 128, 128, 1};
  for (int i = 0; i < 3; ++i) {
    layers.push_back(spec.unit("layer." + std::to_string(i)).tensor("weight", {widths[i], widths[i + 1]}).tensor("bias", {widths[i + 1]}));
  }

  // 2. The engine. Stage 3, the default, shards parameters, gradients and moments.
  tessera::Engine engine(world, spec, {.optimizer = tessera::AdamW{.weight_decay = 0.0f}});
  engine.initialize([](const tessera::TensorPiece& piece) {  // called for the parts that this rank owns
    const bool bias = piece.tensor.shape.size() == 1;
    const float size = bias ? 0.0f : 1.0f / std::sqrt(static_cast<float>(piece.tensor.shape[0]));
    int element = static_cast<int>(piece.begin.value);
    for (float& value : piece.values()) value = size * scatter(7 * ++element);
  });

  const int mine = kPoints / world.size();
  for (int step = 0; step < kSteps; ++step) {
    Numbers points, targets;
    for (int i = 0; i < mine; ++i) {
      const int index = (step * world.size() + world.rank().value) * mine + i;
      points.insert(points.end(), {scatter(2 * index), scatter(31 * index + 5)});
      targets.push_back(std::sin(3.0f * points[2 * i]) * points[2 * i + 1]);
    }

    double loss = 0.0;
    {
      // 3. One micro-batch: forward, then backward. A lease makes a layer's parameters whole on this rank; it ends with its scope.
      auto micro_batch = engine.micro_batch();
      std::vector<Numbers> inputs = {points};
      for (tessera::UnitId layer : layers) {
        auto parameters = engine.gather(layer);
        inputs.push_back(forward(inputs.back(), parameters["weight"], parameters["bias"], layer == layers.back()));
      }
      Numbers gradient = inputs.back();
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] -= targets[i];
        loss += 0.5 * gradient[i] * gradient[i];
      }
      for (std::size_t i = layers.size(); i-- > 0;) {
        auto parameters = engine.gather(layers[i], tessera::Phase::backward);
        auto gradients = engine.gradients(layers[i]);
        gradient = backward(inputs[i], gradient, parameters["weight"], gradients["weight"], gradients["bias"]);
        if (i > 0)
          for (std::size_t k = 0; k < gradient.size(); ++k) gradient[k] *= 1.0f - inputs[i][k] * inputs[i][k];  // through tanh
      }
    }

    // 4. The step: gradients of all ranks are summed, scaled once by what the caller says, and every rank updates its own part.
    const double mean_loss = engine.sum(loss) / kPoints;
    engine.step({.learning_rate = 3e-3f, .gradient_scale = 1.0 / kPoints});
    if (world.rank() == tessera::Rank(0) && (step % 100 == 0 || step == kSteps - 1)) std::printf("step %3d  loss %.5f\n", step, mean_loss);
  }
  if (world.rank() == tessera::Rank(0)) {
    const tessera::MemoryBytes peak = engine.report().peak;
    std::printf("%d ranks; each held at most %lld bytes of parameters and %lld of moments, of %lld and %lld\n", world.size(),
                static_cast<long long>(peak[tessera::Category::parameters].value),
                static_cast<long long>(peak[tessera::Category::moments].value), static_cast<long long>(4 * spec.elements().value),
                static_cast<long long>(8 * spec.elements().value));
  }
}

int main() { tessera::run_threads(4, train); }
