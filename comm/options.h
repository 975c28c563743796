// What every transport asks of TransportOptions.
#pragma once

#include <chrono>

#include "tessera/communicator.h"

namespace tessera::comm {

/// Throws UsageError for a chunk that cannot hold an element or be sent at once, a deadline that is over at once, or a negative delay.
void check_options(const TransportOptions& options);
void check_deadline(std::chrono::milliseconds deadline);

}  // namespace tessera::comm
