// Which ranks are on which host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::comm::hierarchical {

/// Hosts of equally many ranks each, one host's ranks in a row: rank = host * per_host + index.
struct Places {
  int hosts = 1, per_host = 1;
  int host_of(int rank) const { return rank / per_host; }
  int index_of(int rank) const { return rank % per_host; }
};

/// `keys[r]` is the same for ranks of one host and differs between hosts. Nothing where the ranks do not lie as Places says.
std::optional<Places> places_of(const std::vector<std::uint64_t>& keys);

}  // namespace tessera::comm::hierarchical
