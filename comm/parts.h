// Which elements of an all_reduce each rank folds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/types.h"

namespace tessera::comm {

/// Elements [begin, end).
struct Part {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// As equal as can be; the first ranks have one more.
inline Part part_of(Elements count, int rank, int ranks) {
  const std::int64_t each = count.value / ranks, rest = count.value % ranks;
  const std::int64_t begin = each * rank + std::min<std::int64_t>(rank, rest);
  return {begin, begin + each + (rank < rest ? 1 : 0)};
}

}  // namespace tessera::comm
