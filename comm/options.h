// What every transport asks of TransportOptions.
#pragma once

#include "tessera/communicator.h"

namespace tessera::comm {

/// Throws UsageError for a chunk that cannot hold an element, a deadline that is over at once, or a negative delay.
void check_options(const TransportOptions& options);

}  // namespace tessera::comm
