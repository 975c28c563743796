#include "comm/options.h"

#include <fmt/format.h>

#include "core/isa.h"
#include "tessera/error.h"

namespace tessera::comm {

void check_deadline(std::chrono::milliseconds deadline) {
  if (deadline.count() <= 0)
    throw UsageError(fmt::format("a deadline of {} ms was set (every operation would fail at once); 60 s is usual", deadline.count()));
}

void check_options(const TransportOptions& options) {
  constexpr std::int64_t kLargestElement = 8;
  if (options.chunk.value < kLargestElement)
    throw UsageError(
        fmt::format("TransportOptions::chunk is {} bytes (one element can take {}); 1 MiB is usual", options.chunk.value, kLargestElement));
  constexpr std::int64_t kMostAtOnce = 1 << 30;  // MPI counts in int
  if (options.chunk.value > kMostAtOnce)
    throw UsageError(fmt::format("TransportOptions::chunk is {} bytes (more than {}); 1 MiB is usual", options.chunk.value, kMostAtOnce));
  check_deadline(options.deadline);
  if (options.random_delay.count() < 0)
    throw UsageError(fmt::format("TransportOptions::random_delay is {} us (fewer than none)", options.random_delay.count()));
  if (options.shared_memory < Bytes(0))
    throw UsageError(fmt::format("TransportOptions::shared_memory is {} bytes (0 is what the host has free)", options.shared_memory.value));
  if (options.ranks_per_node < 0)
    throw UsageError(fmt::format("TransportOptions::ranks_per_node is {} (0 is as the hosts are)", options.ranks_per_node));
  core::isa();  // throws where TESSERA_ISA names none: here, not on a worker thread in the first sum
}

}  // namespace tessera::comm
