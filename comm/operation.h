// One collective of one rank, from submission to its end. The first half is written once, by Communicator::submit; the second is
// the state, which the transport moves from queued over running to over.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/failure.h"
#include "core/mutex.h"
#include "tessera/communicator.h"

namespace tessera {

namespace comm {
class FlightRecorder;
}

/// What an operation is: the same on all ranks, or they disagree. A plain value, which may lie in shared memory.
struct OperationIdentity {
  Verb verb{};
  Label label{};
  std::int64_t sequence = 0;
  DType dtype{};
  DType shard_dtype{};      ///< of reduce_scatter's destination
  Elements count{};         ///< per rank for all_gather and reduce_scatter, else of the whole
  int parts = 1;            ///< count · parts elements are in the full buffer
  Fold fold = Fold::start;  ///< reduce_scatter
  ReduceOp reduce = ReduceOp::sum;
  Rank root{};

  Bytes full_bytes() const { return to_bytes(count * parts, dtype); }
  bool matches(const OperationIdentity& other) const;
};

struct Operation : OperationIdentity {
  bool announced = false;  ///< all ranks come to it and agree, and move the data by other means (mpi)
  /// Elements from one rank's part of the full buffer to the next's, where that is not `count`: a piece of every part (node).
  std::optional<Elements> stride{};
  ConstRegion source{};
  Region destination{};
  std::chrono::steady_clock::time_point submitted{}, deadline{};
  std::shared_ptr<comm::FlightRecorder> recorder;  ///< until the end; the recorder remembers the operation for longer

  /// Neither writes what the other reads or writes: they may run at the same time.
  bool independent_of(const Operation& other) const;

  /// Queued becomes running. False where the operation is over already, because it failed while it was queued.
  bool begin();
  /// Running becomes over; lets go of the regions' owners.
  void finish();
  /// Over, whatever it was; false where somebody else has ended it or `only_queued` and it is running. The owners go to the caller.
  struct Owners {
    std::shared_ptr<const void> source, destination;
  };
  enum class Unless : std::uint8_t { ended, running };
  bool fail(const std::shared_ptr<const comm::Failure>& failure, Unless unless, Owners* owners = nullptr);

  void waits_for(std::vector<Rank> peers);

  bool over() const;
  void wait() const;            ///< until it is over
  void wait_and_raise() const;  ///< until it is over; throws what it failed of
  OperationRecord record() const;

 private:
  enum class State : std::uint8_t { queued, running, ending, over };
  void end(const std::shared_ptr<const comm::Failure>& failure, Owners* owners);

  mutable core::Mutex mutex_;
  mutable core::CondVar changed_;
  State state_ TESSERA_GUARDED_BY(mutex_) = State::queued;
  std::chrono::steady_clock::time_point started_ TESSERA_GUARDED_BY(mutex_){}, finished_ TESSERA_GUARDED_BY(mutex_){};
  std::vector<Rank> waiting_for_ TESSERA_GUARDED_BY(mutex_);
  std::shared_ptr<const comm::Failure> failure_ TESSERA_GUARDED_BY(mutex_);
  comm::Whereabouts where_ TESSERA_GUARDED_BY(mutex_);
  std::string dump_ TESSERA_GUARDED_BY(mutex_);
};

namespace comm {
/// Whose turn it is among the operations of a channel on one rank.
struct Turn {
  std::int64_t sequence = 0;
  bool taken = false;  ///< it is under way and minds its own deadline; those behind it are not held up by their streams
};

/// For a transport that is made of others, or over another.
struct Insider {
  static void failed_elsewhere(Communicator& communicator) noexcept { communicator.failed_elsewhere(); }
  static void abort_with(Communicator& communicator, const Failure& failure) noexcept { communicator.abort_with(failure); }
  /// Hands a communicator an operation that the public verbs cannot express.
  static Pending submit(Communicator& communicator, std::shared_ptr<Operation> operation, Stream& stream) {
    return communicator.submit(std::move(operation), stream);
  }
};
}  // namespace comm

}  // namespace tessera
