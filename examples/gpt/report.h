// What a run did, as the JSON file of --report and as a table for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/gpt/setup.h"
#include "tessera/engine.h"
#include "tessera/world.h"

namespace gpt {

struct StepRecord {
  std::int64_t step = 0;   ///< from 0
  double loss = 0.0;       ///< mean over the step's tokens, nats
  double grad_norm = 0.0;  ///< before clipping
  double learning_rate = 0.0;
  double seconds = 0.0;
  double tokens_per_second = 0.0;
  double speed_of_light = 0.0;  ///< matrix FLOPs of the step over what the ranks' processors could multiply in that time
  bool skipped = false;
};

/// What the example measures on a rank, beside the engine's RankReport.
struct RankMeasure {
  std::int64_t activations_peak_bytes = 0;
  std::int64_t rss_peak_bytes = 0;
  std::int64_t pss_peak_bytes = 0;
  double compute_seconds = 0.0;
};

struct RunReport {
  std::vector<StepRecord> steps;
  std::vector<tessera::RankReport> ranks;
  std::vector<RankMeasure> measures;
  std::vector<std::string> decisions;
};

/// Throws std::runtime_error naming the file where it cannot be written.
void write_report(const std::string& path, const Setup& setup, tessera::World& world, const RunReport& run);

/// Bytes of rank 0 by category, predicted and measured.
std::string memory_table(const RunReport& run, std::int64_t stage);

}  // namespace gpt
