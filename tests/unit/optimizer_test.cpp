#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shard/optimizer.h"
#include "tessera/error.h"

using namespace tessera;
using namespace tessera::shard;

namespace {

constexpr int kSteps = 4;

struct Named {
  std::string name;
  Optimizer optimizer;
};

std::vector<Named> all_optimizers() {
  return {{"adamw", AdamW{.weight_decay = 0.1f}},
          {"adamw amsgrad", AdamW{.beta2 = 0.5f, .weight_decay = 0.1f, .amsgrad = true}},
          {"adam", Adam{.weight_decay = 0.1f}},
          {"adam amsgrad", Adam{.beta2 = 0.5f, .weight_decay = 0.1f, .amsgrad = true}},
          {"sgd", Sgd{.weight_decay = 0.1f}},
          {"sgd momentum", Sgd{.momentum = 0.9f, .weight_decay = 0.1f}},
          {"sgd nesterov", Sgd{.momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true}},
          {"adagrad", Adagrad{.weight_decay = 0.1f}},
          {"lion", Lion{.weight_decay = 0.1f}}};
}

/// Parameters, state and gradients of some elements.
struct State {
  std::vector<float> parameters;
  std::array<std::vector<float>, 3> moments;
  std::vector<std::vector<float>> gradients;  // one per step

  explicit State(std::size_t count, std::uint64_t seed = 1) : parameters(count) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<float> normal;
    for (float& p : parameters) p = normal(engine);
    for (auto& m : moments) m.assign(count, 0.0f);
    gradients.assign(kSteps, std::vector<float>(count));
    for (auto& g : gradients)
      for (float& x : g) x = normal(engine) * std::exp(2.0f * normal(engine));
  }

  OptimizerRange range(std::size_t begin, std::size_t count, int step) {
    return {parameters.data() + begin,
            gradients[static_cast<std::size_t>(step)].data() + begin,
            {moments[0].data() + begin, moments[1].data() + begin, moments[2].data() + begin},
            Elements(static_cast<std::int64_t>(count))};
  }
};

OptimizerStep step_number(int i) {
  OptimizerStep step;
  step.learning_rate = 0.01f;
  step.step = i + 1;
  step.gradient_scale = 0.7f;
  step.clip_factor = 0.9f;
  return step;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(const State& a, const State& b) {
  return same_bits(a.parameters, b.parameters) && same_bits(a.moments[0], b.moments[0]) && same_bits(a.moments[1], b.moments[1]) &&
         same_bits(a.moments[2], b.moments[2]);
}

Optimizer without_decay(Optimizer optimizer) {
  std::visit([](auto& h) { h.weight_decay = 0.0f; }, optimizer);
  return optimizer;
}

/// The definitions of torch.optim and of the papers in float64, one element at a time.
struct Exact {
  double p = 0.0;
  std::array<double, 3> m{};

  void step(const AdamW& h, double g, double lr, double t) {
    p *= 1.0 - lr * static_cast<double>(h.weight_decay);
    adam(h.beta1, h.beta2, h.eps, h.amsgrad, g, lr, t);
  }
  void step(const Adam& h, double g, double lr, double t) {
    adam(h.beta1, h.beta2, h.eps, h.amsgrad, g + static_cast<double>(h.weight_decay) * p, lr, t);
  }
  void step(const Sgd& h, double g, double lr, double) {
    g += static_cast<double>(h.weight_decay) * p;
    if (h.momentum != 0.0f) {
      m[0] = static_cast<double>(h.momentum) * m[0] + g;
      g = h.nesterov ? g + static_cast<double>(h.momentum) * m[0] : m[0];
    }
    p -= lr * g;
  }
  void step(const Adagrad& h, double g, double lr, double) {
    g += static_cast<double>(h.weight_decay) * p;
    m[0] += g * g;
    p -= lr * g / (std::sqrt(m[0]) + static_cast<double>(h.eps));
  }
  void step(const Lion& h, double g, double lr, double) {
    const double beta1 = h.beta1;
    const double beta2 = h.beta2;
    const double direction = beta1 * m[0] + (1.0 - beta1) * g;
    closest_call = std::min(closest_call, std::fabs(direction));
    p *= 1.0 - lr * static_cast<double>(h.weight_decay);
    p -= lr * (direction > 0.0 ? 1.0 : direction < 0.0 ? -1.0 : 0.0);
    m[0] = beta2 * m[0] + (1.0 - beta2) * g;
  }

  double closest_call = 1.0;  // the smallest magnitude whose sign was taken

 private:
  void adam(double beta1, double beta2, double eps, bool amsgrad, double g, double lr, double t) {
    m[0] = beta1 * m[0] + (1.0 - beta1) * g;
    m[1] = beta2 * m[1] + (1.0 - beta2) * g * g;
    m[2] = std::max(m[2], m[1]);
    const double corrected = (amsgrad ? m[2] : m[1]) / (1.0 - std::pow(beta2, t));
    p -= lr * (m[0] / (1.0 - std::pow(beta1, t))) / (std::sqrt(corrected) + eps);
  }
};

}  // namespace

TEST_CASE("optimizers: every element follows the float64 definition for 1, 2, 15, 16, 17 and 1023 elements, with decay and without (B24)") {
  for (const Named& n : all_optimizers())
    for (const std::size_t count : {1u, 2u, 15u, 16u, 17u, 1023u})
      for (const bool decay : {true, false}) {
        CAPTURE(n.name);
        CAPTURE(count);
        CAPTURE(decay);
        const Optimizer definition = decay ? n.optimizer : without_decay(n.optimizer);
        State state(count, count);
        std::vector<Exact> exact(count);
        for (std::size_t i = 0; i < count; ++i) exact[i].p = state.parameters[i];
        std::vector<double> largest_p(count, 1.0);  // what was as large as this once carries a rounding error of that size
        std::vector<double> largest_g(count, 0.0);
        double parameters = 0.0;
        double moments = 0.0;
        double closest = 1.0;
        for (int t = 0; t < kSteps; ++t) {
          OptimizerStep step = step_number(t);
          step.decay = decay;
          update(n.optimizer, step, state.range(0, count, t));
          for (std::size_t i = 0; i < count; ++i) {
            const float y = state.gradients[static_cast<std::size_t>(t)][i] * step.gradient_scale;
            const double g = static_cast<double>(y * step.clip_factor);
            std::visit([&](const auto& h) { exact[i].step(h, g, static_cast<double>(step.learning_rate), t + 1); }, definition);
            closest = std::min(closest, exact[i].closest_call);
            largest_p[i] = std::max(largest_p[i], std::fabs(exact[i].p));
            largest_g[i] = std::max(largest_g[i], std::fabs(g));
            parameters = std::max(parameters, std::fabs(static_cast<double>(state.parameters[i]) - exact[i].p) / largest_p[i]);
            for (std::size_t k = 0; k < static_cast<std::size_t>(moments_per_element(n.optimizer)); ++k) {
              const bool squares = k > 0 || n.name == "adagrad";
              const double size = squares ? std::fabs(exact[i].m[k]) : largest_g[i];
              moments = std::max(moments, std::fabs(static_cast<double>(state.moments[k][i]) - exact[i].m[k]) / size);
            }
          }
        }
        REQUIRE(closest > 1e-6);  // no sign that rounding could turn
        CHECK(parameters < 3e-7);
        if (!decay) CHECK(moments < 6e-7);  // gradient and L2 decay may cancel, and then moments are as inexact as that
      }
}

TEST_CASE("optimizers: any split of a range and any alignment give the same bits (B24)") {
  constexpr std::size_t kCount = 1023;
  for (const Named& n : all_optimizers()) {
    CAPTURE(n.name);
    State whole(kCount);
    for (int t = 0; t < kSteps; ++t) update(n.optimizer, step_number(t), whole.range(0, kCount, t));
    for (const std::size_t size : {1u, 2u, 3u, 7u, 15u, 16u, 17u, 64u, 1000u}) {
      CAPTURE(size);
      State split(kCount);
      for (int t = 0; t < kSteps; ++t)
        for (std::size_t at = 0; at < kCount; at += size)
          update(n.optimizer, step_number(t), split.range(at, std::min(size, kCount - at), t));
      CHECK(same_bits(split, whole));
    }
  }
}

TEST_CASE("optimizers: arrays of different alignment give the same bits (B24)") {
  constexpr std::size_t kCount = 333;
  for (const Named& n : all_optimizers()) {
    CAPTURE(n.name);
    State whole(kCount);
    update(n.optimizer, step_number(0), whole.range(0, kCount, 0));
    for (std::size_t shift = 1; shift < 8; ++shift) {
      State state(kCount);
      std::vector<float> moved(kCount + shift);
      std::copy(state.parameters.begin(), state.parameters.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
      OptimizerRange range = state.range(0, kCount, 0);
      range.parameters = moved.data() + shift;
      update(n.optimizer, step_number(0), range);
      std::copy(moved.begin() + static_cast<std::ptrdiff_t>(shift), moved.end(), state.parameters.begin());
      CHECK(same_bits(state, whole));
    }
  }
}

TEST_CASE("optimizers: nothing outside the range is touched, and an empty range is legal (B25)") {
  for (const Named& n : all_optimizers()) {
    CAPTURE(n.name);
    State state(40);
    const State before = state;
    update(n.optimizer, step_number(0), OptimizerRange{});
    update(n.optimizer, step_number(0), state.range(9, 0, 0));
    CHECK(same_bits(state, before));
    update(n.optimizer, step_number(0), state.range(9, 17, 0));
    for (std::size_t i = 0; i < 40; ++i) {
      const bool inside = i >= 9 && i < 26;
      CHECK((state.parameters[i] != before.parameters[i]) == inside);
      for (int k = 0; k < 3; ++k)
        if (!inside || k >= moments_per_element(n.optimizer))
          CHECK(state.moments[static_cast<std::size_t>(k)][i] == before.moments[static_cast<std::size_t>(k)][i]);
    }
  }
}

TEST_CASE("optimizers: the gradient is scaled, rounded, clipped and rounded, in this order") {
  for (const Named& n : all_optimizers()) {
    CAPTURE(n.name);
    State state(257);
    State scaled(257);
    for (float& g : scaled.gradients[0]) {
      const float y = g * 0.7f;
      g = y * 0.9f;
    }
    OptimizerStep plain = step_number(0);
    plain.gradient_scale = 1.0f;
    plain.clip_factor = 1.0f;
    update(n.optimizer, step_number(0), state.range(0, 257, 0));
    update(n.optimizer, plain, scaled.range(0, 257, 0));
    CHECK(same_bits(state, scaled));
  }
}

TEST_CASE("optimizers: decay = false is a weight decay of zero, to the bit (B25)") {
  for (const Named& n : all_optimizers()) {
    CAPTURE(n.name);
    State a(100);
    State b(100);
    State decayed(100);
    for (int t = 0; t < kSteps; ++t) {
      OptimizerStep step = step_number(t);
      update(n.optimizer, step, decayed.range(0, 100, t));
      update(without_decay(n.optimizer), step, b.range(0, 100, t));
      step.decay = false;
      update(n.optimizer, step, a.range(0, 100, t));
    }
    CHECK(same_bits(a, b));
    CHECK_FALSE(same_bits(a.parameters, decayed.parameters));
  }
}

TEST_CASE("optimizers: an element whose gradients are zero moves by its decay alone") {
  for (const Named& n : all_optimizers()) {
    CAPTURE(n.name);
    State state(9);
    for (auto& g : state.gradients) g.assign(9, 0.0f);
    const State before = state;
    for (int t = 0; t < kSteps; ++t) {
      OptimizerStep step = step_number(t);
      step.decay = false;
      update(n.optimizer, step, state.range(0, 9, t));
    }
    CHECK(same_bits(state, before));
  }
}

TEST_CASE("optimizers: the first step of Adam moves every element by the learning rate, whatever its gradient's size") {
  for (const float g : {1e-3f, 1.0f, 1e6f, -1e15f}) {
    float p = 0.0f;
    float m = 0.0f;
    float v = 0.0f;
    OptimizerStep step;
    step.learning_rate = 0.125f;
    update(AdamW{.weight_decay = 0.0f}, step, {&p, &g, {&m, &v, nullptr}, Elements(1)});
    CHECK(p == doctest::Approx(g > 0 ? -0.125 : 0.125).epsilon(1e-4));
  }
}

TEST_CASE("optimizers: after a million steps of one gradient Adam's bias correction still moves by the learning rate") {
  float p = 0.0f;
  const float g = 0.3f;
  float m = 0.3f;
  float v = 0.3f * 0.3f;
  OptimizerStep step;
  step.learning_rate = 0.01f;
  step.step = 1'000'000;
  update(AdamW{.weight_decay = 0.0f}, step, {&p, &g, {&m, &v, nullptr}, Elements(1)});
  CHECK(p == doctest::Approx(-0.01).epsilon(1e-6));
  step.step = std::numeric_limits<std::int64_t>::max();
  update(AdamW{.weight_decay = 0.0f}, step, {&p, &g, {&m, &v, nullptr}, Elements(1)});
  CHECK(p == doctest::Approx(-0.02).epsilon(1e-6));
}

TEST_CASE("optimizers: the first step with momentum is a step without it") {
  State plain(50);
  State heavy(50);
  update(Sgd{}, step_number(0), plain.range(0, 50, 0));
  update(Sgd{.momentum = 0.9f}, step_number(0), heavy.range(0, 50, 0));
  CHECK(same_bits(plain.parameters, heavy.parameters));
}

TEST_CASE("optimizers: AMSGrad remembers the largest second moment") {
  float p = 0.0f;
  std::array<float, 3> state{};
  const AdamW amsgrad{.beta2 = 0.5f, .amsgrad = true};
  float largest = 0.0f;
  for (const float g : {1.0f, 10.0f, 0.1f, 0.1f}) {
    update(amsgrad, step_number(0), {&p, &g, {&state[0], &state[1], &state[2]}, Elements(1)});
    largest = std::max(largest, state[1]);
    CHECK(state[2] == largest);
  }
  CHECK(state[2] > state[1]);
}

TEST_CASE("optimizers: NaN gradients spread to the parameter instead of being masked (B21)") {
  const float g = std::numeric_limits<float>::quiet_NaN();
  for (const Named& n : all_optimizers()) {
    if (n.name == "lion") continue;  // the sign of NaN is 0; its momentum keeps the NaN
    CAPTURE(n.name);
    State state(1);
    state.gradients[0][0] = g;
    update(n.optimizer, step_number(0), state.range(0, 1, 0));
    CHECK(std::isnan(state.parameters[0]));
    if (moments_per_element(n.optimizer) == 3) CHECK(std::isnan(state.moments[2][0]));  // as in torch.maximum
  }
  State state(1);
  state.gradients[0][0] = g;
  update(Lion{}, step_number(0), state.range(0, 1, 0));
  CHECK(std::isnan(state.moments[0][0]));
}

TEST_CASE("optimizers: these bits are the same from every compiler, at every optimisation and on every processor") {
  const auto bits_of = [](const Optimizer& optimizer) {
    State state(0);
    std::mt19937_64 engine(5);  // not through a distribution, whose bits may differ
    const auto next = [&engine] { return static_cast<float>(static_cast<std::int64_t>(engine() >> 40) - (1 << 23)) * 0x1p-20f; };
    for (int i = 0; i < 37; ++i) {
      state.parameters.push_back(next());
      for (auto& m : state.moments) m.push_back(0.0f);
      for (auto& g : state.gradients) g.push_back(next());
    }
    for (int t = 0; t < kSteps; ++t) update(optimizer, step_number(t), state.range(0, 37, t));
    std::uint64_t hash = 14695981039346656037u;
    for (const std::vector<float>* values : {&state.parameters, &state.moments[0], &state.moments[1], &state.moments[2]})
      for (const float x : *values) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &x, sizeof(bits));
        hash = (hash ^ bits) * 1099511628211u;
      }
    return hash;
  };
  const std::vector<std::uint64_t> expected = {15488865931015323545u, 10519601720974338801u, 9123362688018962586u,
                                               15440575172356168329u, 17488793034199330848u, 14650861093470571775u,
                                               7620863898955637904u,  18074707597725492378u, 13228586187867707475u};
  const std::vector<Named> optimizers = all_optimizers();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    CAPTURE(optimizers[i].name);
    CHECK(bits_of(optimizers[i].optimizer) == expected[i]);
  }
}

TEST_CASE("optimizers: names and state per element") {
  CHECK(name_of(AdamW{}) == "adamw");
  CHECK(name_of(Adam{}) == "adam");
  CHECK(name_of(Sgd{}) == "sgd");
  CHECK(name_of(Adagrad{}) == "adagrad");
  CHECK(name_of(Lion{}) == "lion");
  CHECK(moments_per_element(AdamW{}) == 2);
  CHECK(moments_per_element(AdamW{.amsgrad = true}) == 3);
  CHECK(moments_per_element(Adam{}) == 2);
  CHECK(moments_per_element(Adam{.amsgrad = true}) == 3);
  CHECK(moments_per_element(Sgd{}) == 0);
  CHECK(moments_per_element(Sgd{.momentum = 0.5f}) == 1);
  CHECK(moments_per_element(Adagrad{}) == 1);
  CHECK(moments_per_element(Lion{}) == 1);
}

TEST_CASE("optimizers: hyperparameters outside their range are refused by name") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Named& n : all_optimizers()) CHECK_NOTHROW(check(n.optimizer));
  CHECK_THROWS_WITH_AS(check(AdamW{.beta1 = 1.0f}), "adamw: beta1 is 1; it must be at least 0 and below 1", UsageError);
  CHECK_THROWS_AS(check(AdamW{.beta2 = -0.1f}), UsageError);
  CHECK_THROWS_AS(check(Adam{.beta2 = nan}), UsageError);
  CHECK_THROWS_AS(check(Adam{.eps = -1e-8f}), UsageError);
  CHECK_THROWS_AS(check(AdamW{.weight_decay = std::numeric_limits<float>::infinity()}), UsageError);
  CHECK_THROWS_AS(check(Sgd{.momentum = 1.5f}), UsageError);
  CHECK_THROWS_AS(check(Sgd{.nesterov = true}), UsageError);
  CHECK_THROWS_AS(check(Adagrad{.weight_decay = -1.0f}), UsageError);
  CHECK_THROWS_AS(check(Lion{.beta1 = 2.0f}), UsageError);
}
