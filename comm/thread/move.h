// What one rank of the thread transport does in a collective once all ranks are there: copies and folds between the ranks' memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/operation.h"
#include "tessera/communicator.h"

namespace tessera::comm {

enum class Moved : std::uint8_t { wholly, in_part };

/// Moves this rank's part of the collective in steps of at most `chunk` bytes; stops early when `stop` says so.
/// `operations` are all ranks', in rank order.
Moved move_data(const std::vector<std::shared_ptr<Operation>>& operations, Rank rank, Bytes chunk, const std::function<bool()>& stop);

}  // namespace tessera::comm
