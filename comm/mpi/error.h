// MPI's status codes, translated in one place.
#pragma once

#include <string>

#include "tessera/backends/mpi.h"

namespace tessera::comm::mpi {

/// What MPI says about `code`.
std::string text_of(int code);

/// Throws CommFailure naming `call` unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

}  // namespace tessera::comm::mpi
