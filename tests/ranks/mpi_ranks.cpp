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

// The ranks meet over MPI and then make a world of their own, which is cheap, and none breaks another. Hierarchical ones pretend to be on
// several hosts (--ranks-per-node) and add in leaf order, so that the bits are those of every other transport.
class MetRanks final : public RankLauncher {
 public:
  using Make = World (*)(const World& over, const TransportOptions& options);
  MetRanks(int& argc, char**& argv, const TransportOptions& defaults, Make make)
      : met_(mpi_world(argc, argv)), defaults_(defaults), make_(make) {}

  void run(const std::function<void(World&)>& body, const std::optional<TransportOptions>& asked) override {
    TransportOptions options = asked.value_or(defaults_);
    options.ranks_per_node = defaults_.ranks_per_node;
    if (!asked || asked->reduce_order == ReduceOrder::natural) options.reduce_order = defaults_.reduce_order;
    World world = make_(met_, options);
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
  Make make_;
};

}  // namespace

std::unique_ptr<RankLauncher> launch_mpi(int& argc, char**& argv, const TransportOptions& defaults) {
  return std::make_unique<MpiRanks>(argc, argv, defaults);
}

std::unique_ptr<RankLauncher> launch_node(int& argc, char**& argv, const TransportOptions& defaults) {
  return std::make_unique<MetRanks>(argc, argv, defaults, node_world);
}

std::unique_ptr<RankLauncher> launch_hierarchical(int& argc, char**& argv, const TransportOptions& defaults) {
  return std::make_unique<MetRanks>(argc, argv, defaults, hierarchical_world);
}

}  // namespace tessera::testing
