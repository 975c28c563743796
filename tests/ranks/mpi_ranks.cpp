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

}  // namespace

std::unique_ptr<RankLauncher> launch_mpi(int& argc, char**& argv, const TransportOptions& defaults) {
  return std::make_unique<MpiRanks>(argc, argv, defaults);
}

}  // namespace tessera::testing
