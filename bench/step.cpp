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
#include <unistd.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/matrix_product.h"
#include "bench/measure.h"
#include "tessera/models/gpt.h"
#include "tessera/version.h"

namespace {

using nlohmann::ordered_json;

const tessera::GptConfig kModel{.layers = 8, .heads = 8, .width = 512, .context = 256, .vocab = 256};
constexpr int kMicroBatch = 2;
constexpr int kWarmUp = 2;  // steps that do not count

struct Settings {
  int pairs = 15;
  int steps = 8;
  std::string transport = "node";
  std::string only;
  std::string json;
};

/// Where runs keep their files; gone at the end.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "tessera-bench-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
    std::ofstream text(path_ + "/text");
    for (int i = 0; i < 200'000; ++i) text << static_cast<char>('a' + i * i % 23);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// One run, or several side by side.
struct Run {
  int ranks = 1;
  int stage = 3;
  int micro_batch = kMicroBatch;
  std::int64_t context = kModel.context;
  int steps = 8;
  int copies = 1;  ///< independent runs of as many ranks, started together
};

/// Trains and returns the report.
ordered_json train(const Folder& folder, const std::string& name, const Run& run, const std::string& transport) {
  const std::string program = (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "examples/train_gpt").string();
  const std::string report = folder / (name + ".json");
  std::string command = run.ranks > 1 ? fmt::format("mpirun --oversubscribe --bind-to none -np {} ", run.ranks) : std::string();
  command += fmt::format(
      "'{}' --text '{}' --layers {} --heads {} --width {} --context {} --vocab {} --batch {} --micro-batch {} --steps {} "
      "--stage {} --quiet --report '{}' --transport {}",
      program, folder / "text", kModel.layers, kModel.heads, kModel.width, run.context, kModel.vocab, run.micro_batch * run.ranks,
      run.micro_batch, run.steps, run.stage, report, run.ranks > 1 ? transport : "thread");
  const int status = std::system(command.c_str());
  if (status != 0) throw std::runtime_error(fmt::format("this failed with status {}: {}", status, command));
  std::ifstream file(report);
  return ordered_json::parse(file);
}

double tokens_per_second(const ordered_json& report) {
  std::vector<double> rates;
  for (std::size_t i = kWarmUp; i < report.at("steps").size(); ++i)
    rates.push_back(report.at("steps")[i].at("tokens_per_second").get<double>());
  return bench::median(rates);
}

double rate(const Folder& folder, Run run, const Settings& settings) {
  run.steps = kWarmUp + settings.steps;
  std::vector<std::future<double>> runs;
  for (int i = 0; i < run.copies; ++i)
    runs.push_back(std::async(std::launch::async, [&folder, &run, &settings, i] {
      return tokens_per_second(train(folder, fmt::format("run{}", i), run, settings.transport));
    }));
  double sum = 0.0;
  for (auto& r : runs) sum += r.get();
  return sum;
}

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
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
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
      ours.figures.push_back(rate(folder, c.ours, settings));
      other.figures.push_back(rate(folder, c.other, settings));
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
