#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shard/optimizer.h"

using namespace tessera;
using namespace tessera::shard;

namespace {

using nlohmann::json;
using Values = std::vector<double>;

/// Made with torch.optim in float64: 257 elements, 12 steps; element 11 never gets a gradient.
json reference() {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/reference/optimizers.json");
  REQUIRE(file);
  return json::parse(file);
}

std::vector<float> to_float(const json& values) {
  std::vector<float> result;
  for (const double x : values.get<Values>()) result.push_back(static_cast<float>(x));
  return result;
}

struct Run {
  std::vector<float> parameters;
  std::vector<std::vector<float>> moments;
  Values travelled;  ///< per element: the largest magnitude it had, which bounds what rounding can do
};

Run run(const json& all, const Optimizer& optimizer, float learning_rate) {
  Run r;
  r.parameters = to_float(all["param0"]);
  const std::size_t n = r.parameters.size();
  r.moments.resize(static_cast<std::size_t>(moments_per_element(optimizer)));
  for (auto& m : r.moments) m.assign(n, 0.0f);
  r.travelled.assign(n, 0.0);
  OptimizerStep step;
  step.learning_rate = learning_rate;
  for (const json& gradients : all["grads"]) {
    const std::vector<float> g = to_float(gradients);
    OptimizerRange range{r.parameters.data(), g.data(), {}, Elements(static_cast<std::int64_t>(n))};
    for (std::size_t k = 0; k < r.moments.size(); ++k) range.moments[k] = r.moments[k].data();
    for (std::size_t i = 0; i < n; ++i) r.travelled[i] = std::max(r.travelled[i], std::fabs(static_cast<double>(r.parameters[i])));
    update(optimizer, step, range);
    ++step.step;
  }
  return r;
}

/// The largest |ours - theirs|, each relative to max(|theirs|, size).
double worst_error(const std::vector<float>& ours, const Values& theirs, const Values& size) {
  REQUIRE(ours.size() == theirs.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(ours[i]) - theirs[i]) / std::max({std::fabs(theirs[i]), size[i], 1e-30}));
  return worst;
}

void check_against(const std::string& name, const Optimizer& optimizer, const std::vector<std::string>& states) {
  CAPTURE(name);
  const json all = reference();
  const json& expected = all["runs"][name];
  const Run r = run(all, optimizer, expected["hyper"]["lr"].get<float>());
  const double parameter_error = worst_error(r.parameters, expected["param"].get<Values>(), r.travelled);
  CHECK(parameter_error < 1e-6);
  REQUIRE(r.moments.size() == states.size());
  // A signed moment is as uncertain as the gradients that cancelled in it.
  Values largest_gradient(r.parameters.size(), 0.0);
  for (const json& gradients : all["grads"]) {
    const Values g = gradients.get<Values>();
    for (std::size_t i = 0; i < g.size(); ++i) largest_gradient[i] = std::max(largest_gradient[i], std::fabs(g[i]));
  }
  for (std::size_t k = 0; k < states.size(); ++k) {
    CAPTURE(states[k]);
    const bool is_signed = states[k] == "exp_avg" || states[k] == "momentum_buffer";
    const double error = worst_error(r.moments[k], expected["state"][states[k]].get<Values>(),
                                     is_signed ? largest_gradient : Values(r.parameters.size(), 0.0));
    CHECK(error < 2e-6);
  }
}

}  // namespace

TEST_CASE("optimizers: AdamW equals PyTorch's after 12 steps, element by element (B24)") {
  check_against("adamw", AdamW{.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f}, {"exp_avg", "exp_avg_sq"});
}

TEST_CASE("optimizers: Adam with L2 decay equals PyTorch's after 12 steps, element by element (B24)") {
  check_against("adam_l2", Adam{.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f}, {"exp_avg", "exp_avg_sq"});
}

TEST_CASE("optimizers: AMSGrad equals PyTorch's after 12 steps, element by element (B24)") {
  check_against("adamw_amsgrad", AdamW{.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f, .amsgrad = true},
                {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
}

TEST_CASE("optimizers: SGD equals PyTorch's after 12 steps, element by element (B24)") { check_against("sgd", Sgd{}, {}); }

TEST_CASE("optimizers: SGD with momentum and decay equals PyTorch's after 12 steps, element by element (B24)") {
  check_against("sgd_momentum", Sgd{.momentum = 0.9f, .weight_decay = 0.01f}, {"momentum_buffer"});
}

TEST_CASE("optimizers: Nesterov momentum equals PyTorch's after 12 steps, element by element (B24)") {
  check_against("sgd_nesterov", Sgd{.momentum = 0.9f, .nesterov = true}, {"momentum_buffer"});
}

TEST_CASE("optimizers: Adagrad equals PyTorch's after 12 steps, element by element (B24)") {
  check_against("adagrad", Adagrad{.eps = 1e-10f}, {"sum"});
}
