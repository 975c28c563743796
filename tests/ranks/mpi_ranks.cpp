#include <stdexcept>

#include "tessera/backends/mpi.h"
#include "tests/ranks/rank_launcher.h"

namespace tessera::testing {
namespace {

class MpiRanks final : public RankLauncher {
 public:
  MpiRanks(int& argc, char**& argv, const TransportOptions& defaults) : world_(mpi_world(argc, argv, defaults)) {}

  void run(const std::function<void(World&)>& body, const std::optional<TransportOptions>& options) override {
    if (broken_) throw std::runtime_error("not run: an earlier test left this process's world broken");
    World world = options ? mpi_world(MPI_COMM_WORLD, *options) : world_;
    try {
      body(world);
    } catch (...) {
      // The peers are still in the body, waiting for this rank.
      world.communicator().abort("a test's body threw");
      if (!options) broken_ = true;
      throw;
    }
  }
  int ranks() const override { return world_.size(); }
  int rank_of_process() const override { return world_.rank().value; }

 private:
  World world_;
  bool broken_ = false;
};

// The ranks meet over MPI and then share memory: a new node world is cheap, and none breaks another.
class NodeRanks final : public RankLauncher {
 public:
  NodeRanks(int& argc, char**& argv, const TransportOptions& defaults) : met_(mpi_world(argc, argv)), defaults_(defaults) {}

  void run(const std::function<void(World&)>& body, const std::optional<TransportOptions>& options) override {
    World world = node_world(met_, options.value_or(defaults_));
    try {
      body(world);
    } catch (const std::exception& e) {
      world.communicator().abort(std::string("a test's body threw: ") + e.what());
      throw;
    }
  }
  int ranks() const override { return met_.size(); }
  int rank_of_process() const override { return met_.rank().value; }

 private:
  World met_;
  TransportOptions defaults_;
};

}  // namespace

std::unique_ptr<RankLauncher> launch_mpi(int& argc, char**& argv, const TransportOptions& defaults) {
  return std::make_unique<MpiRanks>(argc, argv, defaults);
}

std::unique_ptr<RankLauncher> launch_node(int& argc, char**& argv, const TransportOptions& defaults) {
  return std::make_unique<NodeRanks>(argc, argv, defaults);
}

}  // namespace tessera::testing
