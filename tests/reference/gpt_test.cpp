// train_gpt against values that PyTorch computed in float64 (make_reference.py in the project's shared folder; README.md beside the files).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/safetensors.h"
#include "tests/reference/gpt_runs.h"

namespace {

using namespace tessera::testing;
using nlohmann::json;

constexpr double kLossAndNorm = 2e-6;  // relative
constexpr double kWeights = 5e-5;      // of the model's largest element

double largest_difference(const json& steps, const char* field, const json& expected) {
  double most = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double reference = expected[i].get<double>();
    most = std::max(most, std::abs(steps[i][field].get<double>() - reference) / reference);
  }
  return most;
}

void check_steps(const json& report, const std::string& run) {
  const json expected = read_json(kReference + "gpt_tiny.json")["runs"][run];
  REQUIRE(report["steps"].size() == expected["loss"].size());
  CHECK(largest_difference(report["steps"], "loss", expected["loss"]) <= kLossAndNorm);
  CHECK(largest_difference(report["steps"], "grad_norm", expected["grad_norm"]) <= kLossAndNorm);
}

std::vector<float> values_of(const tessera::SafetensorsReader& file, const tessera::SafetensorsEntry& entry) {
  std::vector<float> values(static_cast<std::size_t>(entry.elements.value));
  file.read(entry, tessera::Elements(0), entry.elements, values.data());
  return values;
}

void check_final_weights(const std::string& path) {
  const tessera::SafetensorsReader expected(kReference + "gpt_tiny_final.safetensors");
  const tessera::SafetensorsReader found(path);
  REQUIRE(found.entries().size() == expected.entries().size());
  double largest = 0.0;
  double difference = 0.0;
  for (const auto& entry : expected.entries()) {
    const auto* other = found.find(entry.name);
    REQUIRE(other != nullptr);
    REQUIRE(other->shape == entry.shape);
    const std::vector<float> a = values_of(expected, entry);
    const std::vector<float> b = values_of(found, *other);
    // A key bias has no influence on softmax attention: its gradient is rounding, which Adam amplifies.
    const bool has_key_bias = entry.name.find("attn.c_attn.bias") != std::string::npos;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i])));
      if (has_key_bias && i / (a.size() / 3) == 1) continue;
      difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    }
  }
  CHECK(largest == doctest::Approx(1.29).epsilon(0.01));
  CHECK(difference <= kWeights * largest);
}

void check_frozen(const std::string& path) {
  const tessera::SafetensorsReader before(kReference + "gpt_tiny_init.safetensors");
  const tessera::SafetensorsReader after(path);
  for (const auto& entry : before.entries()) {
    const std::vector<float> a = values_of(before, entry);
    const std::vector<float> b = values_of(after, *after.find(entry.name));
    INFO(entry.name);
    CHECK((std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) == (entry.name.rfind("h.1.", 0) == 0));
  }
}

struct World {
  Ranks kind;
  int ranks;
  int micro_batch;
};

std::vector<World> worlds() {
  std::vector<World> all = {{Ranks::threads, 8, 1}};
#ifdef TESSERA_WITH_MPI
  for (const int ranks : {1, 2, 4}) all.push_back({Ranks::mpi, ranks, 2});
  for (const int ranks : {2, 4}) all.push_back({Ranks::node, ranks, 2});
#else
  for (const int ranks : {1, 2, 4}) all.push_back({Ranks::threads, ranks, 2});
#endif
  return all;
}

// Trains at every stage in every world; `check(report, path of the final weights)`.
template <class Check>
void train_everywhere(const std::vector<std::string>& extra, const Check& check) {
  const TemporaryFolder folder;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const World& world : worlds()) {
      INFO("stage " << stage << ", " << world.ranks << " ranks over " << name_of(world.kind));
      std::vector<std::string> arguments = reference_arguments();
      arguments.insert(arguments.end(), extra.begin(), extra.end());
      arguments.insert(arguments.end(), {"--stage", std::to_string(stage), "--micro-batch", std::to_string(world.micro_batch), "--report",
                                         folder / "run.json", "--export", folder / "final.safetensors"});
      const Outcome outcome = train_gpt(world.kind, world.ranks, arguments);
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      const json report = read_json(folder / "run.json");
      CHECK(report["world_size"] == world.ranks);
      CHECK(report["stage"] == stage);
      check(report, folder / "final.safetensors");
    }
  }
}

TEST_CASE("reference: losses, norms and final weights of adamw and adamw_accumulate_4 at every stage") {
  // Every micro-batch is a leaf: on any number of ranks, micro-batches of 2 are the reference's accumulation of 4 and its one batch of 8.
  train_everywhere({"--clip", "1"}, [](const json& report, const std::string& weights) {
    check_steps(report, "adamw");
    check_steps(report, "adamw_accumulate_4");
    check_final_weights(weights);
  });
}

TEST_CASE("reference: losses and norms of adamw_no_clip at every stage") {
  train_everywhere({"--clip", "0"}, [](const json& report, const std::string&) { check_steps(report, "adamw_no_clip"); });
}

TEST_CASE("reference: losses and norms of adamw_frozen_h1 at every stage, and h.1 keeps its bits") {
  train_everywhere({"--clip", "1", "--freeze", "h.1."}, [](const json& report, const std::string& weights) {
    check_steps(report, "adamw_frozen_h1");
    check_frozen(weights);
  });
}

}  // namespace
