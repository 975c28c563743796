// How a process joins a world over MPI, and leaves it. Everything here runs on the communication thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backends/mpi.h"
#include "tessera/communicator.h"

namespace tessera::comm::mpi {

enum class MpiOwner { caller, tessera };

struct Joined {
  MPI_Comm communicator = MPI_COMM_NULL;  ///< a duplicate, for our own traffic
  MpiOwner owner = MpiOwner::caller;      ///< who finalises MPI
  Rank rank;
  std::vector<std::string> hosts;  ///< by rank
};

/// Over MPI_COMM_WORLD; initialises MPI where nobody has. Throws UsageError as mpi_world() says.
Joined join_world(int& argc, char**& argv, const TransportOptions& options);
/// Over the caller's communicator.
Joined join(MPI_Comm communicator, const TransportOptions& options);

/// Why a world of `size` processes cannot be the whole of what the launcher started, if so. `environment` is like std::getenv.
std::optional<std::string> launcher_disagrees(int size, const std::function<const char*(const char*)>& environment);

}  // namespace tessera::comm::mpi
