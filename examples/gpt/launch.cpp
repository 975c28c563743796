#include "examples/gpt/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#ifdef TESSERA_WITH_MPI
#include "tessera/backends/mpi.h"
#endif

namespace gpt {
namespace {

int from_environment(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr) return std::atoi(value);
  }
  return otherwise;
}

// Processes of this job; 0 without a launcher.
int launched_ranks() {
  if (const int size = from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0); size > 0) return size;
  return std::getenv("SLURM_STEP_ID") != nullptr && std::getenv("SLURM_PROCID") != nullptr ? from_environment({"SLURM_NTASKS"}, 0) : 0;
}

int refuse(const std::string& what) {
  if (launched_rank() == 0) std::fputs(("train_gpt: " + what + "\n").c_str(), stderr);
  return 2;
}

tessera::TransportOptions transport_options(const Config& config) {
  tessera::TransportOptions options;
  options.deadline = config.deadline_time();
  if (config.reduction == "leaf") options.reduce_order = tessera::ReduceOrder::leaf;
  return options;
}

int run_processes([[maybe_unused]] const Config& config, [[maybe_unused]] int argc, [[maybe_unused]] char** argv,
                  [[maybe_unused]] const RankBody& body) {
#ifdef TESSERA_WITH_MPI
  try {
    const tessera::TransportOptions options = transport_options(config);
    tessera::World met = tessera::mpi_world(argc, argv, options);
    if (config.transport == "mpi") return body(met, {});
    if (config.transport == "node") {
      tessera::World world = tessera::node_world(met, options);
      return body(world, {});
    }
    if (config.transport == "hierarchical") {
      tessera::World world = tessera::hierarchical_world(met, options);
      return body(world, {});
    }
    tessera::ChosenWorld chosen = tessera::fastest_world(met, options);
    return body(chosen.world, "transport " + chosen.why);
  } catch (const tessera::UsageError& e) { return refuse(e.what()); } catch (const std::exception& e) {
    std::fputs(fmt::format("train_gpt: rank {}: {}\n", launched_rank(), e.what()).c_str(), stderr);
    return 1;
  }
#else
  return refuse("processes meet over MPI, which this build has not; build with it, or use --transport thread --threads N without mpirun");
#endif
}

}  // namespace

int launched_rank() { return from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}, 0); }

int launch(const CommandLine& line, int argc, char** argv, const RankBody& body) {
  const Config& config = line.config;
  const int processes = launched_ranks();
  const bool threads_asked = config.transport == "thread" || (config.transport == "auto" && config.given.contains("--threads"));
  if (threads_asked && processes > 1) {
    return refuse(fmt::format("--transport thread under a launcher of {} processes would train {} times; start it without mpirun",
                              processes, processes));
  }
  if (config.transport == "mpi" || config.transport == "node" || config.transport == "hierarchical" || (processes > 0 && !threads_asked))
    return run_processes(config, argc, argv, body);
  const int ranks = static_cast<int>(config.threads);
  if (!line.error.empty()) return refuse(line.error);
  std::vector<int> codes(static_cast<std::size_t>(ranks), 0);
  const auto of_rank = [&](tessera::World& world) { codes[static_cast<std::size_t>(world.rank().value)] = body(world, {}); };
  try {
    tessera::run_threads(ranks, of_rank, transport_options(config));
  } catch (const tessera::UsageError& e) { return refuse(e.what()); }
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace gpt
