// Where a program gets its ranks from: threads of this process (here), MPI (tessera/backends/mpi.h); and how ranks that have met choose a
// faster way than the one they met on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/communicator.h"

namespace tessera {

/// This rank's door to all ranks. Copies share. Engines split their own communicator off it, so several may live at once.
class TESSERA_API World {
 public:
  explicit World(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

  Rank rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  std::string_view transport() const { return communicator_->transport(); }
  Communicator& communicator() const { return *communicator_; }

 private:
  std::shared_ptr<Communicator> communicator_;
};

/// `ranks` ends of one world inside this process, one for each thread that the caller runs. World size 1 is this with one rank.
/// Throws UsageError unless ranks >= 1.
std::vector<World> thread_world(int ranks, const TransportOptions& options = {});

/// Runs body(world) on `ranks` threads and joins them. When bodies throw, the first cause is rethrown: an exception that is not
/// the echo of a peer's failure (CommFailure, StepInterrupted) before one that is.
void run_threads(int ranks, const std::function<void(World&)>& body, const TransportOptions& options = {});

/// The ranks of `over` again, through memory that they share; `over` is only where they meet. Collective. Throws UsageError where they are
/// not processes of one host, RuntimeFailure on every rank where the system lets no memory be shared, saying what it refused.
World node_world(const World& over, const TransportOptions& options = {});

/// The ranks of `over` (over mpi) again: through shared memory within a host, and between hosts each byte once per host. Collective. Throws
/// UsageError unless all hosts have equally many ranks, each host's in a row.
World hierarchical_world(const World& over, const TransportOptions& options = {});

/// The fastest transport for where the ranks of `over` are, and why it was chosen.
struct ChosenWorld {
  World world;
  std::string why;
};
/// Collective. Processes on one host: node; several on each of several hosts: hierarchical. Otherwise, and where memory cannot be
/// shared, `over` itself.
ChosenWorld fastest_world(const World& over, const TransportOptions& options = {});

}  // namespace tessera
