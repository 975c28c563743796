// What sharding gives and costs as ranks are added, on one host, in one run: for 1, 2, 4 and 8 ranks and stages 0 to 3 the most memory that
// a rank holds as training state, the shared memory of its host included once, and the tokens per second of all ranks together, each
// against one rank. The global batch is the same everywhere: 8 sequences of context 64.
//
// The ratio of memory is that of one rank to that of a rank: the more, the more each gave back. More ranks than cores can only cost speed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/training.h"
#include "tessera/version.h"

namespace {

using namespace bench;

struct Settings {
  int pairs = 3;
  int steps = 4;
  std::string transport = "node";
  std::string json;
};

/// Of the rank that holds most.
double peak_bytes(const nlohmann::ordered_json& report) {
  double most = 0.0;
  for (const auto& rank : report.at("ranks")) most = std::max(most, rank.at("peak_bytes").at("total").get<double>());
  return most;
}

/// Of all processes of the run together, as the kernel counts what they share: once.
double resident_bytes(const nlohmann::ordered_json& report) {
  double sum = 0.0;
  for (const auto& rank : report.at("ranks")) sum += rank.at("pss_peak_bytes").get<double>();
  return sum;
}

void measure(const Settings& settings) {
  const Folder folder;
  Table table("scale");
  constexpr int kBatch = 8;
  const auto run_of = [&](int ranks, int stage) {
    Run run{.ranks = ranks, .stage = stage, .micro_batch = 1, .context = 64, .batch = kBatch};
    run.steps = kWarmUp + settings.steps;
    return train(folder, "run", run, settings.transport);
  };
  struct Row {
    int ranks, stage;
    Term memory_one{"1 rank", {}}, memory{"a rank", {}}, host{"all ranks", {}}, host_one{"1 rank", {}}, speed{"ours", {}},
        speed_one{"1 rank", {}};
  };
  std::vector<Row> rows;
  for (const int ranks : {1, 2, 4, 8})
    for (const int stage : {0, 1, 2, 3})
      if (ranks > 1 || stage > 0) rows.push_back({.ranks = ranks, .stage = stage});
  for (int pair = 0; pair < settings.pairs; ++pair) {
    const auto one = run_of(1, 0);
    for (Row& row : rows) {
      const auto many = run_of(row.ranks, row.stage);
      row.memory_one.figures.push_back(peak_bytes(one));
      row.memory.figures.push_back(peak_bytes(many));
      row.host_one.figures.push_back(resident_bytes(one));
      row.host.figures.push_back(resident_bytes(many));
      row.speed.figures.push_back(tokens_per_second(many));
      row.speed_one.figures.push_back(tokens_per_second(one));
    }
  }
  for (const Row& row : rows) {
    const auto name = [&](const char* what) { return fmt::format("{}, {} ranks, stage {}", what, row.ranks, row.stage); };
    table.add(name("state of 1 rank / of each rank"), "B", 0.0, row.memory_one, row.memory);
    table.add(name("memory of all / of 1 rank"), "B", 0.0, row.host, row.host_one);
    table.add(name("speed of all / of 1 rank"), "tokens/s", 0.0, row.speed, row.speed_one);
  }
  table.write(settings.json);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Memory and speed of 1 to 8 ranks at every stage, against one rank at stage 0", "bench_scale");
  app.set_version_flag("--version", "bench_scale " + std::string(tessera::kVersion));
  app.add_option("--pairs", settings.pairs, "alternating pairs of runs")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--steps", settings.steps, "steps of each run that count")->check(CLI::Range(1, 100'000))->capture_default_str();
  app.add_option("--transport", settings.transport, "of runs of several ranks")
      ->check(CLI::IsMember({"auto", "node", "mpi"}))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the ratios and every run's figures to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    measure(settings);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_scale: %s\n", e.what());
    return 1;
  }
}
