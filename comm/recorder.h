// What a communicator remembers of its operations: numbers, the last 64 of them, the units' names, the deadline.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "core/mutex.h"
#include "tessera/communicator.h"

namespace tessera {

struct OperationIdentity;  // comm/operation.h

namespace comm {

class FlightRecorder {
 public:
  explicit FlightRecorder(std::chrono::milliseconds deadline) : deadline_(deadline) {}

  /// Numbers the operation and remembers it.
  void enter(const std::shared_ptr<Operation>& operation);
  /// Sequence numbers start again at 0.
  void restart();
  /// No operation is accepted any more. Returns how many there were on each channel.
  std::array<std::int64_t, kChannels> leave();
  bool left() const;
  void ended(const OperationRecord& record) const;  ///< calls the callback

  std::array<std::int64_t, kChannels> submitted() const;
  std::vector<OperationRecord> recent() const;
  std::string dump() const;
  /// Where this rank is: `operation`, or the last remembered one that belongs to a unit if `operation` does not.
  Whereabouts whereabouts(const Operation& operation) const;

  void name_units(std::vector<std::string> names);
  std::string unit_name(UnitId unit) const;
  void on_finish(std::function<void(const OperationRecord&)> callback);
  void set_deadline(std::chrono::milliseconds deadline);
  std::chrono::milliseconds deadline() const;

 private:
  static constexpr std::size_t kRemembered = 64;

  mutable core::Mutex mutex_;
  std::array<std::int64_t, kChannels> submitted_ TESSERA_GUARDED_BY(mutex_){};
  bool left_ TESSERA_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Operation>> recent_ TESSERA_GUARDED_BY(mutex_);
  std::vector<std::string> names_ TESSERA_GUARDED_BY(mutex_);
  std::function<void(const OperationRecord&)> callback_ TESSERA_GUARDED_BY(mutex_);
  std::chrono::milliseconds deadline_ TESSERA_GUARDED_BY(mutex_);
};

/// "reduce_scatter #12 of unit 'h.3' step 4 leaf 0 (4096 elements of fp32)". `unit_name` as from FlightRecorder::unit_name.
std::string describe(const OperationIdentity& operation, const std::string& unit_name);
/// "rank 3", "ranks 1, 2 and 5", "no rank".
std::string list_ranks(const std::vector<Rank>& ranks);
/// Two ranks are in different operations with the same number.
std::string disagreement_message(Rank one, const std::string& in_one, Rank other, const std::string& in_other);
/// `gone` left after `calls` operations, and `rank` waits in a later one.
std::string departure_message(Rank gone, std::int64_t calls, Channel channel, Rank rank, const std::string& waits_in);
/// The operation is ready, but an earlier one of its channel has not come out of its stream.
std::string out_of_turn_message(Rank rank, const std::string& described, const Operation& operation);
/// A step cannot be resumed while its operations are still in their streams.
std::string held_up_message(Rank rank, std::chrono::milliseconds deadline);

}  // namespace comm

struct Communicator::Recorder : comm::FlightRecorder {
  using FlightRecorder::FlightRecorder;
};

}  // namespace tessera
