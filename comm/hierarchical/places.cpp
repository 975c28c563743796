#include "comm/hierarchical/places.h"

#include <algorithm>
#include <set>

namespace tessera::comm::hierarchical {

std::optional<Places> places_of(const std::vector<std::uint64_t>& keys) {
  if (keys.empty()) return std::nullopt;
  Places out;
  out.per_host =
      static_cast<int>(std::find_if(keys.begin(), keys.end(), [&](std::uint64_t k) { return k != keys.front(); }) - keys.begin());
  const auto per_host = static_cast<std::size_t>(out.per_host);
  if (keys.size() % per_host != 0) return std::nullopt;
  out.hosts = static_cast<int>(keys.size() / per_host);
  std::set<std::uint64_t> seen;
  for (std::size_t first = 0; first < keys.size(); first += per_host) {
    if (!seen.insert(keys[first]).second) return std::nullopt;
    for (std::size_t r = first; r < first + per_host; ++r)
      if (keys[r] != keys[first]) return std::nullopt;
  }
  return out;
}

}  // namespace tessera::comm::hierarchical
