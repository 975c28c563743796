// How rank_main.cpp starts the ranks of a test: one implementation per transport, so that MPI is named in one file.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tessera/world.h"

namespace tessera::testing {

class RankLauncher {
 public:
  virtual ~RankLauncher() = default;
  /// Runs body(world) on the ranks that this process holds. With `options`, in a world made for this call alone.
  virtual void run(const std::function<void(World&)>& body, const std::optional<TransportOptions>& options) = 0;
  virtual int ranks() const = 0;
  virtual int rank_of_process() const = 0;  ///< 0 where one process holds all ranks
};

std::unique_ptr<RankLauncher> launch_threads(int ranks, const TransportOptions& defaults);
std::unique_ptr<RankLauncher> launch_mpi(int& argc, char**& argv, const TransportOptions& defaults);   // mpi_ranks.cpp, where there is MPI
std::unique_ptr<RankLauncher> launch_node(int& argc, char**& argv, const TransportOptions& defaults);  // likewise
std::unique_ptr<RankLauncher> launch_hierarchical(int& argc, char**& argv, const TransportOptions& defaults);

}  // namespace tessera::testing
