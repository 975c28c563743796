// Everything that can be found wrong before training, on any rank, and what a run needs once nothing is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/gpt/config.h"
#include "examples/gpt/tokens.h"
#include "examples/gpt/weights.h"
#include "tessera/models/gpt.h"
#include "tessera/options.h"
#include "tessera/world.h"

namespace gpt {

struct Setup {
  Config config;  ///< with sizes and batches settled
  tessera::GptModel model;
  tessera::Options options;
  std::unique_ptr<TokenFile> tokens;
  std::optional<WeightFile> weights;   ///< --init
  std::vector<std::string> decisions;  ///< what was chosen here, and why

  std::int64_t micro_batches(int ranks) const { return config.batch / (config.micro_batch * ranks); }
};

/// Collective. Throws InputError on all ranks alike.
Setup prepare(tessera::World& world, const CommandLine& line);

}  // namespace gpt
