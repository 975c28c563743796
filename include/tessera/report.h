// What a rank measured: values only.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/communicator.h"
#include "tessera/memory.h"
#include "tessera/types.h"

namespace tessera {

struct RankReport {
  Rank rank{};
  std::string host;
  MemoryBytes peak{};              ///< the ledger's peaks, construction to now
  MemoryBytes forecast{};          ///< what the plan said before anything was allocated
  Traffic traffic{};               ///< of this engine, since construction
  std::int64_t plan_misses = 0;    ///< gathers the plan did not expect, gradient leases beyond the declared uses
  double exposed_seconds = 0.0;    ///< this rank's caller stood waiting for communication
  double optimizer_seconds = 0.0;  ///< norm and update
  double total_seconds = 0.0;      ///< since the first micro-batch
};

}  // namespace tessera
