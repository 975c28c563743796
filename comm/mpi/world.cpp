#include "comm/mpi/communicator.h"
#include "comm/options.h"
#include "tessera/backends/mpi.h"

namespace tessera {

World mpi_world(int& argc, char**& argv, const TransportOptions& options) {
  comm::check_options(options);
  return World(comm::mpi::MpiCommunicator::of_world(
      std::make_shared<comm::mpi::Courier>([&] { return comm::mpi::join_world(argc, argv, options); }, options)));
}

World mpi_world(MPI_Comm communicator, const TransportOptions& options) {
  comm::check_options(options);
  return World(comm::mpi::MpiCommunicator::of_world(
      std::make_shared<comm::mpi::Courier>([&] { return comm::mpi::join(communicator, options); }, options)));
}

}  // namespace tessera
