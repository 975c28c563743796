#include "comm/mpi/error.h"

#include <fmt/format.h>

#include <array>

#include "tessera/error.h"

namespace tessera::comm::mpi {

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return fmt::format("MPI error {}", code);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw CommFailure(fmt::format("{} failed: {}", call, text_of(code)), {}, call, {}, {});
}

}  // namespace tessera::comm::mpi
