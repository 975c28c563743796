// Sends and receives of the communication thread on its own duplicate of the caller's communicator. Ranks here are the world's.
// Every MPI call after start-up is made here or in requests.cpp.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "comm/mpi/requests.h"
#include "comm/mpi/signal.h"
#include "tessera/types.h"

namespace tessera::comm::mpi {

class Wire {
 public:
  /// Called for each signal that arrives; must not throw.
  using Receiver = std::function<void(Rank source, const std::byte* data, std::size_t size)>;

  Wire(MPI_Comm communicator, Receiver receiver);

  /// A copy is sent; MPI takes it at once or a little later.
  void signal(Rank to, const Packet& packet);
  /// Synchronous: over when the receiver has taken it, so that nothing piles up there.
  void send(Rank to, int tag, const std::byte* data, Bytes bytes, const void* group, Requests::Done done);
  void receive(Rank from, int tag, std::byte* data, Bytes bytes, const void* group, Requests::Done done);
  void cancel_receives(const void* group) { requests_.cancel_receives(group); }

  /// True where anything was over.
  bool progress() { return requests_.test(); }
  std::size_t signals_on_their_way() const { return signals_; }
  /// Stops listening for signals.
  void close();
  /// True where nothing is outstanding.
  bool idle() const { return requests_.empty(); }
  void abandon() { requests_.abandon(); }

  int largest_context() const { return largest_context_; }
  static int tag(int context, Channel channel, int stream) {
    return 1 + context * kChannels * kStreams + static_cast<int>(channel) * kStreams + stream;
  }

 private:
  void listen();

  MPI_Comm communicator_;
  Receiver receiver_;
  Requests requests_;
  std::size_t signals_ = 0;
  int largest_context_ = 0;
  bool closing_ = false;
};

}  // namespace tessera::comm::mpi
