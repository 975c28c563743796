// Where the ranks come from: processes under mpirun or srun, or threads of this process.
#pragma once

#include <functional>
#include <string>

#include "examples/gpt/config.h"
#include "tessera/world.h"

namespace gpt {

/// This process's rank as its launcher told it, before any transport exists; 0 without one.
int launched_rank();

/// What runs on a rank; `why` says how its transport was chosen, empty where it was asked for.
using RankBody = std::function<int(tessera::World& world, const std::string& why)>;

/// Runs `body` once for each rank of this process; returns the worst of what it returned, or 2 with a line on stderr where no world can be
/// had.
int launch(const CommandLine& line, int argc, char** argv, const RankBody& body);

}  // namespace gpt
