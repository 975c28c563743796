// Who is in which sub-communicator: the part of split() that is the same on every transport.
#pragma once

#include <vector>

#include "tessera/communicator.h"

namespace tessera::comm {

struct Membership {
  std::vector<Rank> members;  ///< ranks of the parent, in the order of their rank in the sub-communicator
  Rank rank;                  ///< this rank's place among them
  std::int64_t agreed = 0;    ///< the largest `proposal` of any rank of the parent
};

/// Collective over `parent`, on its control channel; blocks.
Membership agree_on_members(Communicator& parent, int color, int key, std::int64_t proposal = 0);

void check_rank(Rank rank, int size);  ///< throws UsageError unless 0 <= rank < size
void check_size(int size);             ///< throws UsageError unless size >= 1

}  // namespace tessera::comm
