// The speed of a training step of the GPT example on one host, as ratios whose two terms are measured in turn within this run (tokens per
// second, all ranks together):
//
//   stage 3 on 2 ranks        against   two independent one-rank runs started together: no sharding, no communication
//   stage 3 on 2 ranks        against   stage 0 on 2 ranks
//   small steps: micro-batch 1, context 64; stage 3 on 2 ranks against two independent runs
//   4 ranks                   against   2 ranks with the same global batch
//   GPT forward + backward    against   Eigen's product 512 x 512 x 2048 on one thread     (matrix FLOPs per second)
//
// 8 layers, width 512, context 256, micro-batches of 2 where nothing else is said.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/matrix_product.h"
#include "bench/measure.h"
#include "bench/training.h"
#include "tessera/version.h"

namespace {

using namespace bench;
using nlohmann::ordered_json;

struct Settings {
  int pairs = 15;
  int steps = 8;
  std::string transport = "node";
  std::string only;
  std::string json;
};

double forward_backward_flops_per_second(const Folder& folder, int steps) {
  const ordered_json report = train(folder, "one", {.steps = steps}, "thread");
  const double tokens = static_cast<double>(steps) * kMicroBatch * static_cast<double>(kModel.context);
  return tokens * tessera::gpt_training_flops_per_token(kModel) / report.at("ranks")[0].at("seconds").at("compute").get<double>();
}

struct Contest {
  std::string key, name;
  double target;
  std::string ours_name;
  Run ours;
  std::string other_name;
  Run other;
};

void measure(const Settings& settings) {
  const Folder folder;
  bench::Table table("step");
#ifdef TESSERA_WITH_MPI
  const std::vector<Contest> contests = {
      {"independent", "step, stage 3 on 2 ranks", 0.97, "stage 3", {.ranks = 2}, "2 x 1 rank", {.copies = 2}},
      {"stage0", "step, stage 3 on 2 ranks", 0.97, "stage 3", {.ranks = 2}, "stage 0", {.ranks = 2, .stage = 0}},
      {"small",
       "small step, stage 3 on 2 ranks",
       0.85,
       "stage 3",
       {.ranks = 2, .micro_batch = 1, .context = 64},
       "2 x 1 rank",
       {.micro_batch = 1, .context = 64, .copies = 2}},
      {"crowded", "step, 4 ranks on this machine's cores", 0.85, "4 ranks", {.ranks = 4, .micro_batch = 1}, "2 ranks", {.ranks = 2}},
  };
  for (const Contest& c : contests) {
    if (!settings.only.empty() && settings.only != c.key) continue;
    bench::Term ours{c.ours_name, {}}, other{c.other_name, {}};
    for (int pair = 0; pair < settings.pairs; ++pair) {
      ours.figures.push_back(rate(folder, c.ours, settings.steps, settings.transport));
      other.figures.push_back(rate(folder, c.other, settings.steps, settings.transport));
    }
    table.add(c.name, "tokens/s", c.target, ours, other);
  }
#endif
  if (settings.only.empty() || settings.only == "model") {
    bench::Term model{"GPT", {}};
    bench::Term product{"512x512x2048", {}};
    for (int pair = 0; pair < settings.pairs; ++pair) {
      product.figures.push_back(bench::product_flops_per_second());
      model.figures.push_back(forward_backward_flops_per_second(folder, std::max(1, settings.steps / 2)));
    }
    table.add("GPT forward + backward", "FLOP/s", 0.70, model, product);
  }
  table.write(settings.json);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Ratios of a GPT training step's speed, both terms measured in this run", "bench_step");
  app.set_version_flag("--version", "bench_step " + std::string(tessera::kVersion));
  app.add_option("--pairs", settings.pairs, "alternating pairs of runs")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--steps", settings.steps, "steps of each run that count")->check(CLI::Range(1, 100'000))->capture_default_str();
  app.add_option("--transport", settings.transport, "of runs of several ranks")
      ->check(CLI::IsMember({"auto", "node", "mpi"}))
      ->capture_default_str();
  app.add_option("--only", settings.only, "one row: independent, stage0, small, crowded or model");
  app.add_option("--json", settings.json, "write the ratios and every run's figures to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    measure(settings);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_step: %s\n", e.what());
    return 1;
  }
}
