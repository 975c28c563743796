// Where the ranks of one thread-transport communicator meet: who has come to which operation, who has left, what has failed.
//
// An operation goes through arrive (all ranks are there and agree), moving data straight between the ranks' memory, and depart (nobody
// reads or writes another's memory any more). Both functions return why the operation cannot go on, or nothing.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/failure.h"
#include "comm/operation.h"
#include "comm/recorder.h"
#include "comm/thread/move.h"
#include "core/mutex.h"

namespace tessera::comm {

using Cause = std::shared_ptr<const Failure>;

/// One collective: the operations that the ranks brought to it. Guarded by the hub's mutex until all have come; then constant but for
/// the counts.
struct Meeting {
  explicit Meeting(std::size_t ranks) : came(ranks), departed(ranks) {}
  std::vector<std::shared_ptr<Operation>> came;  ///< by rank, null where it has not come
  std::vector<bool> departed;
  std::size_t arrivals = 0;
  std::size_t departures = 0;
  std::size_t moving = 0;  ///< ranks that touch the others' memory now
  bool cut_short = false;  ///< a rank has not moved all of its part
  core::CondVar changed;
};

class Hub {
 public:
  explicit Hub(int ranks);

  int ranks() const { return static_cast<int>(members_.size()); }
  void join(Rank rank, std::shared_ptr<FlightRecorder> recorder);

  /// Before the operation is queued: what fails meanwhile ends it at once.
  void submit(Rank rank, const std::shared_ptr<Operation>& operation);
  /// Its turn on its stream has come. False where it is over, or about to be ended by whoever interrupted it.
  bool begin(const std::shared_ptr<Operation>& operation);
  void forget(Rank rank, const std::shared_ptr<Operation>& operation);

  /// Blocks until all ranks have come; then this rank may touch their memory until depart().
  Cause arrive(Rank rank, const std::shared_ptr<Operation>& operation, std::shared_ptr<Meeting>& meeting);
  /// Blocks until all ranks are done with each other's memory. After a failure too: then those that still move data are waited for.
  Cause depart(Rank rank, const std::shared_ptr<Operation>& operation, Meeting& meeting, Moved moved);
  /// The rank could not move its part, for this reason: all operations of all ranks fail.
  void fail_to_move(Rank rank, const Operation& operation, const std::string& why);
  /// Why the rest of the data need not be moved.
  Cause failure() const;

  void interrupt(Rank rank, const std::string& cause);
  bool interrupted() const;
  void resume(Rank rank);

  void leave(Rank rank, const std::array<std::int64_t, kChannels>& counts);
  void abort(Rank rank, const std::string& cause);

  /// The hub of the sub-communicator that the ranks of `color` make in the control operation `sequence`; all of them must ask.
  std::shared_ptr<Hub> child(std::int64_t sequence, int color, int ranks);

 private:
  using Key = std::pair<Channel, std::int64_t>;
  struct Doomed {
    Cause why;
    Rank rank;
    std::shared_ptr<Operation> operation;
  };
  using Unended = std::vector<Doomed>;
  struct Member {
    std::shared_ptr<FlightRecorder> recorder;
    std::set<std::shared_ptr<Operation>> operations;  ///< submitted and not over
    std::array<Turn, kChannels> turn{};
    std::optional<std::array<std::int64_t, kChannels>> left;  ///< how many operations there were when it left
    bool resuming = false;
  };

  Member& member(Rank rank) TESSERA_REQUIRES(mutex_) { return members_[static_cast<std::size_t>(rank.value)]; }
  Cause cause() const TESSERA_REQUIRES(mutex_) { return failure_ != nullptr ? failure_ : interruption_; }
  std::string described(Rank rank, const Operation& operation) TESSERA_REQUIRES(mutex_);
  std::vector<Rank> missing(const Meeting& meeting) const TESSERA_REQUIRES(mutex_);
  const Operation* waiting(Rank rank) const TESSERA_REQUIRES(mutex_);
  std::vector<Rank> culprits(const std::vector<Rank>& missing) const TESSERA_REQUIRES(mutex_);
  void wake_all() TESSERA_REQUIRES(mutex_);
  /// The first cause stays. end() what it returns, without the lock: operations that are still queued are over then.
  Unended fail(Failure failure) TESSERA_REQUIRES(mutex_);
  void end(const Unended& operations) TESSERA_EXCLUDES(mutex_);
  std::optional<Failure> disagreement(Rank rank, const Operation& operation, const Meeting& meeting) TESSERA_REQUIRES(mutex_);
  std::optional<Failure> departure(Rank rank, const Operation& operation, const Meeting& meeting) TESSERA_REQUIRES(mutex_);
  Failure held_up(Rank rank) TESSERA_REQUIRES(mutex_);
  Failure out_of_turn(Rank rank, const Operation& operation) TESSERA_REQUIRES(mutex_);
  Failure slowness(Rank rank, const Operation& operation, const std::vector<Rank>& moving) TESSERA_REQUIRES(mutex_);
  Failure lateness(Rank rank, const Operation& operation, const std::vector<Rank>& missing) TESSERA_REQUIRES(mutex_);

  mutable core::Mutex mutex_;
  core::CondVar changed_;        ///< turns, resumptions
  std::vector<Member> members_;  // the size is constant, the rest guarded by mutex_
  std::map<Key, std::shared_ptr<Meeting>> meetings_ TESSERA_GUARDED_BY(mutex_);
  Cause failure_ TESSERA_GUARDED_BY(mutex_);
  Cause interruption_ TESSERA_GUARDED_BY(mutex_);
  std::size_t resuming_ TESSERA_GUARDED_BY(mutex_) = 0;
  std::int64_t epoch_ TESSERA_GUARDED_BY(mutex_) = 0;  ///< how often all have resumed
  struct Child {
    std::shared_ptr<Hub> hub;
    int asked = 0;
  };
  std::map<std::pair<std::int64_t, int>, Child> children_ TESSERA_GUARDED_BY(mutex_);
};

}  // namespace tessera::comm
