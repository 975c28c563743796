// What the command line asks for, and the checks that need nothing but the command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/models/gpt.h"
#include "tessera/optimizer.h"

namespace gpt {

/// Something is wrong with a flag or an input file: exit code 2. One line that names it and the fix.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Config {
  std::string text;
  std::string tokens;
  std::string order = "random";
  tessera::GptConfig model;
  std::string init;
  std::int64_t batch = 0;        ///< 0: chosen from the number of ranks
  std::int64_t micro_batch = 0;  ///< 0: batch / ranks
  std::int64_t steps = 100;
  std::int64_t seed = 1;
  double lr = 1e-3;
  double min_lr = -1.0;  ///< below 0: lr / 10
  std::int64_t warmup = 0;
  std::string optimizer = "adamw";
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;
  double clip = 1.0;
  std::vector<std::string> freeze;
  std::int64_t stage = 3;
  std::string transport = "auto";
  std::string reduction = "auto";
  std::int64_t threads = 1;
  std::int64_t prefetch = 1;
  std::int64_t memory_budget = 0;
  double deadline = 60.0;
  std::string on_nan = "stop";
  std::string export_path;
  std::int64_t sample = 0;
  std::string report;
  std::string trace;
  bool quiet = false;
  std::int64_t hang_rank = -1;

  std::set<std::string, std::less<>> given;  ///< flags of the command line

  const std::string& data_path() const { return text.empty() ? tokens : text; }
  tessera::Optimizer make_optimizer() const;
  /// 24 hours with --hang-rank: the others wait for the one in the debugger.
  std::chrono::milliseconds deadline_time() const;
};

/// The outcome of reading a command line.
struct CommandLine {
  Config config;
  std::string error;     ///< one line; empty if the flags make sense by themselves
  std::string printout;  ///< of --help and --version: print and leave
};

CommandLine read_command_line(int argc, const char* const* argv);

/// Fixes batch and micro-batch for `ranks`, writing into `decisions` what was chosen. Throws InputError with the nearest valid values.
void settle_batches(Config& config, int ranks, std::vector<std::string>& decisions);

/// Every flag's value as the run uses it, as one JSON object.
std::string flags_json(const Config& config);

}  // namespace gpt
