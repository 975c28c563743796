// Runs of train_gpt for benchmarks: 8 layers, width 512, context 256, micro-batches of 2 where nothing else is said.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "tessera/models/gpt.h"

namespace bench {

inline const tessera::GptConfig kModel{.layers = 8, .heads = 8, .width = 512, .context = 256, .vocab = 256};
inline constexpr int kMicroBatch = 2;
inline constexpr int kWarmUp = 2;  // steps that do not count

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
  int batch = 0;  ///< of all ranks; 0: one micro-batch each
  int steps = 8;
  int copies = 1;  ///< independent runs of as many ranks, started together
};

/// Trains and returns the report.
inline nlohmann::ordered_json train(const Folder& folder, const std::string& name, const Run& run, const std::string& transport) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const std::string program = (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "examples/train_gpt").string();
  const std::string report = folder / (name + ".json");
  std::string command = run.ranks > 1 ? fmt::format("mpirun --oversubscribe --bind-to none -np {} ", run.ranks) : std::string();
  command += fmt::format(
      "'{}' --text '{}' --layers {} --heads {} --width {} --context {} --vocab {} --batch {} --micro-batch {} --steps {} "
      "--stage {} --quiet --report '{}' --transport {}",
      program, folder / "text", kModel.layers, kModel.heads, kModel.width, run.context, kModel.vocab,
      run.batch > 0 ? run.batch : run.micro_batch * run.ranks, run.micro_batch, run.steps, run.stage, report,
      run.ranks > 1 ? transport : "thread");
  const int status = std::system(command.c_str());
  if (status != 0) throw std::runtime_error(fmt::format("this failed with status {}: {}", status, command));
  std::ifstream file(report);
  return nlohmann::ordered_json::parse(file);
}

/// Of all ranks together.
inline double tokens_per_second(const nlohmann::ordered_json& report) {
  std::vector<double> rates;
  for (std::size_t i = kWarmUp; i < report.at("steps").size(); ++i)
    rates.push_back(report.at("steps")[i].at("tokens_per_second").get<double>());
  return median(rates);
}

/// The sum over the copies; `steps` of each run count.
inline double rate(const Folder& folder, Run run, int steps, const std::string& transport) {
  run.steps = kWarmUp + steps;
  std::vector<std::future<double>> runs;
  for (int i = 0; i < run.copies; ++i)
    runs.push_back(
        std::async(std::launch::async, [&, i] { return tokens_per_second(train(folder, fmt::format("run{}", i), run, transport)); }));
  double sum = 0.0;
  for (auto& r : runs) sum += r.get();
  return sum;
}

}  // namespace bench
