// Ranks are MPI processes. The one public header that names a foreign library; link Tessera::mpi.
//
// Traffic runs on a duplicate of the caller's communicator. After start-up one communication thread makes every MPI call; MPI must
// therefore offer MPI_THREAD_MULTIPLE.
//
// Where Tessera initialises MPI it first sets four variables of the environment, unless they are set, which Open MPI reads:
// OMPI_MCA_btl_tcp_ eager_limit, rndv_eager_limit and max_send_size (2 MiB) and links (3). Without them a TCP link carries half of what it
// could both ways.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // the C++ bindings of MPI-2 are gone from the standard and full of warnings
#endif
#include <mpi.h>

#include "tessera/world.h"

namespace tessera {

/// Collective over MPI_COMM_WORLD. Initialises MPI if nobody has, and then finalises it when the last World and engine are gone; that waits
/// for the other ranks to be done, but never for a dead one (then MPI_Finalize is left out: it would wait). Throws UsageError where MPI
/// offers less than MPI_THREAD_MULTIPLE, and where the launcher started more processes than MPI_COMM_WORLD has (a mixture of two MPI
/// installations).
World mpi_world(int& argc, char**& argv, const TransportOptions& options = {});

/// Collective over `communicator`, which stays the caller's, as do MPI_Init and MPI_Finalize. All engines must be gone before MPI_Finalize.
World mpi_world(MPI_Comm communicator, const TransportOptions& options = {});

}  // namespace tessera
