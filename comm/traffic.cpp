#include "comm/traffic.h"

#include "comm/operation.h"
#include "comm/parts.h"

namespace tessera::comm {

Traffic traffic_of(const Operation& operation, Rank rank, int ranks) {
  const Bytes whole = to_bytes(operation.count, operation.dtype);
  Bytes sent, received;
  switch (operation.verb) {
    case Verb::all_gather:
    case Verb::reduce_scatter: sent = received = whole * (ranks - 1); break;
    case Verb::all_reduce: {
      const Part part = part_of(operation.count, rank.value, ranks);
      const Bytes own = to_bytes(Elements(part.size()), operation.dtype);
      sent = received = (whole - own) + own * (ranks - 1);
      break;
    }
    case Verb::broadcast:
      if (rank == operation.root) sent = whole * (ranks - 1);
      else received = whole;
      break;
    case Verb::barrier: break;
  }
  Traffic out;
  const bool control = operation.label.channel == Channel::control;
  (control ? out.control_sent : out.payload_sent) = sent;
  (control ? out.control_received : out.payload_received) = received;
  return out;
}

void TrafficCounter::add(const Traffic& more) {
  const core::MutexLock lock(mutex_);
  total_.payload_sent += more.payload_sent;
  total_.payload_received += more.payload_received;
  total_.control_sent += more.control_sent;
  total_.control_received += more.control_received;
}

Traffic TrafficCounter::total() const {
  const core::MutexLock lock(mutex_);
  return total_;
}

}  // namespace tessera::comm
