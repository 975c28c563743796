// What a collective moves between ranks, where the data does not travel as messages that could be counted.
#pragma once

#include "core/mutex.h"
#include "tessera/communicator.h"

namespace tessera::comm {

/// What this rank would send and receive for `operation` if its data travelled as messages.
Traffic traffic_of(const Operation& operation, Rank rank, int ranks);

/// The sum over operations of one rank, which end on several threads.
class TrafficCounter {
 public:
  void add(const Traffic& more);
  Traffic total() const;

 private:
  mutable core::Mutex mutex_;
  Traffic total_ TESSERA_GUARDED_BY(mutex_);
};

}  // namespace tessera::comm
