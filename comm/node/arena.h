// Who has which bytes of a stretch of shared memory: one rank's own stretch, of which only that rank gives and takes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "core/mutex.h"
#include "tessera/types.h"

namespace tessera::comm::node {

class Arena {
 public:
  explicit Arena(Bytes capacity) : free_{{0, capacity.value}} {}

  /// Offset of `bytes` at a multiple of 4,096, the first gap that is large enough; nothing where there is none.
  std::optional<Bytes> take(Bytes bytes);
  void give(Bytes offset, Bytes bytes);
  Bytes taken() const;

 private:
  static std::int64_t rounded(Bytes bytes) { return (bytes.value + 4095) / 4096 * 4096; }

  mutable core::Mutex mutex_;
  std::map<std::int64_t, std::int64_t> free_ TESSERA_GUARDED_BY(mutex_);  ///< begin to size; gaps never touch
  Bytes taken_ TESSERA_GUARDED_BY(mutex_){};
};

}  // namespace tessera::comm::node
