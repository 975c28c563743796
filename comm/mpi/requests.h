// MPI requests on their way, each with what is to be done when it is over. Used by the communication thread alone.
#pragma once

#include <functional>
#include <vector>

#include "tessera/backends/mpi.h"

namespace tessera::comm::mpi {

struct Outcome {
  int error = MPI_SUCCESS;
  int source = MPI_ANY_SOURCE;  ///< of a receive
  int bytes = 0;                ///< of a receive
  bool cancelled = false;
};

class Requests {
 public:
  using Done = std::function<void(const Outcome&)>;
  enum class Kind { send, receive };

  /// `group` is any address: cancel_receives() picks by it.
  void add(MPI_Request request, Kind kind, const void* group, Done done);
  /// Calls what belongs to the requests that are over. False where none was.
  bool test();
  /// Asks MPI to give up the group's receives; each ends through test(), cancelled or with a message after all.
  void cancel_receives(const void* group);
  bool empty() const { return requests_.empty(); }
  /// Forgets all of them; what their Done functions hold stays until the process ends, since MPI may still touch it.
  void abandon();

 private:
  std::vector<MPI_Request> requests_;
  struct Entry {
    Kind kind;
    const void* group;
    Done done;
  };
  std::vector<Entry> entries_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace tessera::comm::mpi
