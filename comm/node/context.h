// One communicator of the node transport as this rank sees it: its operations, the peers' counters and headers in the segment, what
// has failed.
//
// An operation is carried out by the thread of its stream:
//   1. its turn on its channel comes; the header is written, the first piece staged; gate.begin() says that this rank has come;
//   2. when all have come, the headers are compared;
//   3. rounds of reading (move.h); where peers read this rank's memory itself, a last round says that all have read.
// Nothing here is locked between processes. What fails or interrupts is one word, set once (State); an interrupt closes the gates, and what
// all ranks have begun by then is completed by all.
//
// A watcher thread looks after what no operation would notice: queued operations when something fails, and peers that die.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "comm/inquest.h"
#include "comm/node/arena.h"
#include "comm/node/gate.h"
#include "comm/node/move.h"
#include "comm/node/segment.h"
#include "comm/node/words.h"
#include "comm/recorder.h"
#include "comm/traffic.h"
#include "core/mutex.h"

namespace tessera::comm::node {

using Cause = std::shared_ptr<const Failure>;

inline std::size_t index_of(Channel channel) { return static_cast<std::size_t>(channel); }
inline double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

class Context {
 public:
  Context(Segment segment, const SegmentLayout& layout, Rank rank, const TransportOptions& options,
          std::shared_ptr<FlightRecorder> recorder);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int size() const { return layout_.ranks; }
  Rank rank() const { return rank_; }
  const TransportOptions& options() const { return options_; }
  const SegmentLayout& layout() const { return layout_; }
  std::byte* memory() const { return segment_.data(); }
  Segment& segment() { return segment_; }
  Arena& own() { return own_; }
  Arena& flats() { return flats_; }

  /// Waits until all ranks have mapped the segment; throws CommFailure after the deadline. Collective.
  void meet();

  void submit(const std::shared_ptr<Operation>& operation);
  /// On the operation's stream: from its turn to its end.
  void carry_out(const std::shared_ptr<Operation>& operation);

  void interrupt(const std::string& cause);
  bool interrupted() const;
  bool failed() const { return state().kind == State::Kind::failed; }
  void resume();
  void leave(const std::array<std::int64_t, kChannels>& counts);
  void abort(const std::string& cause);
  void abort(const Failure& failure) { fail(failure); }
  Traffic traffic() const { return traffic_.total(); }

 private:
  State state() const { return State::of(Platform::load(words_.state())); }
  Cause cause() const;
  Cause failure() const;  ///< not an interruption
  RankWords& own_words() { return words_(rank_.value); }
  std::string described(const OperationIdentity& operation) const;

  void forget(const std::shared_ptr<Operation>& operation);
  Cause perform(const std::shared_ptr<Operation>& operation);
  Cause wait_turn(const std::shared_ptr<Operation>& operation);
  Cause wait_for_all(Operation& operation);
  Cause pass_round(Operation& operation);
  void pause(const Operation& operation, int phase) const;

  /// The first cause stays.
  void fail(const Failure& failure);
  void end_queued();
  void ring_alarms();
  void watch();
  void look_for_deaths();

  Failure failure_in(const OperationIdentity& operation) const;  ///< with its verb and unit
  std::optional<Failure> disagreement(const Operation& operation, Rank peer) const;
  std::optional<Failure> departure(const Operation& operation, const std::vector<Rank>& absent) const;
  Failure out_of_turn(const Operation& operation) const;
  std::vector<Rank> missing_in(const Operation& operation) const;
  /// Two channels may wait for the same ranks, and either may notice first: the operation of a unit that has waited longest says more than
  /// the control operation behind it.
  Failure lateness_of_earliest(const Operation& operation, const std::vector<Rank>& absent) const;
  Failure lateness(const Operation& operation, const std::vector<Rank>& absent) const;
  Failure slowness(const Operation& operation, const std::vector<Rank>& moving) const;
  /// What `rank` has begun and not all others have.
  Answer waits_of(Rank rank, Rank asking, const Operation& operation) const;

  Segment segment_;
  const SegmentLayout layout_;
  const Rank rank_;
  const TransportOptions options_;
  const std::shared_ptr<FlightRecorder> recorder_;
  const WordsOf words_;
  Gate<Platform, WordsOf> gate_;
  Arena own_, flats_;
  TrafficCounter traffic_;

  mutable core::Mutex mutex_;
  core::CondVar changed_;                                                       ///< turns, ends of operations
  std::set<std::shared_ptr<Operation>> operations_ TESSERA_GUARDED_BY(mutex_);  ///< submitted and not over
  std::array<Turn, kChannels> turn_ TESSERA_GUARDED_BY(mutex_){};
  mutable std::uint64_t known_ TESSERA_GUARDED_BY(mutex_) = 0;  ///< the state that known_cause_ is for
  mutable Cause known_cause_ TESSERA_GUARDED_BY(mutex_);
  bool recorded_failure_ TESSERA_GUARDED_BY(mutex_) = false;  ///< this rank's record is written for good

  // Of whoever has the channel's turn.
  std::array<std::int64_t, kChannels> meetings_{};  ///< beginnings and rounds in this epoch; the same on all ranks
  std::array<std::uint64_t, kChannels> rounds_{};

  // Of the watcher.
  std::vector<int> peers_;  ///< pidfd by rank, -1 where there is none
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

}  // namespace tessera::comm::node
