#include "comm/options.h"

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::comm {

void check_options(const TransportOptions& options) {
  constexpr std::int64_t kLargestElement = 8;
  if (options.chunk.value < kLargestElement)
    throw UsageError(fmt::format("TransportOptions::chunk is {} bytes (one element can take {}); 1 MiB is usual", options.chunk.value, kLargestElement));
  if (options.deadline.count() <= 0)
    throw UsageError(fmt::format("TransportOptions::deadline is {} ms (every operation would fail at once)", options.deadline.count()));
  if (options.random_delay.count() < 0)
    throw UsageError(fmt::format("TransportOptions::random_delay is {} us (fewer than none)", options.random_delay.count()));
}

}  // namespace tessera::comm
