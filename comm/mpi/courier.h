// The communication thread of a process, which makes every MPI call of a world and of the communicators split off it.
//
// It sleeps while nothing is on its way, and backs off while it waits, so that it does not take cores from those who compute.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/bootstrap.h"
#include "comm/mpi/context.h"
#include "comm/mpi/wire.h"
#include "core/mutex.h"

namespace tessera::comm::mpi {

class Courier {
 public:
  /// Starts the thread, which calls `join`; throws what that throws.
  Courier(std::function<Joined()> join, const TransportOptions& options);
  /// Takes leave of the peers and ends the thread; does not wait for peers that are dead.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  Rank rank() const { return joined_.rank; }
  const std::vector<std::string>& hosts() const { return joined_.hosts; }
  const TransportOptions& options() const { return options_; }
  Wire& wire() { return *wire_; }

  /// Runs `work` on the communication thread, soon.
  void post(std::function<void()> work);
  void add(std::shared_ptr<Context> context);
  /// A process that does not answer is dead for every communicator it is in.
  void found_dead(Rank world_rank);
  /// A peer may be gone without a word: at the end, none that is silent is waited for. On the communication thread.
  void expect_silence() { any_failure_ = true; }

  /// Ids of communicators, for split(): one that this rank has used for nothing yet. Throws UsageError when there are no more.
  int reserve_id();
  /// True where `agreed` is `reserved`, or is still free here; then it is taken.
  bool claim_id(int agreed, int reserved);
  void release_id(int id);

 private:
  struct Farewell {
    Clock::time_point begun, ask_again;
    std::vector<Clock::time_point> heard;
  };

  void run(const std::function<Joined()>& join);
  void serve();
  bool run_posted();
  /// Runs `step`; where MPI itself fails in it, all communicators have failed.
  template <class Step>
  bool guarded(const Step& step);
  void take(Rank source, const std::byte* data, std::size_t size);
  void remove_closed();
  bool busy() const;
  void rest(int idle_rounds);
  bool farewell_over(Clock::time_point now);
  void part();

  const TransportOptions options_;
  Joined joined_;
  std::unique_ptr<Wire> wire_;

  core::Mutex mutex_;
  core::CondVar changed_;
  std::deque<std::function<void()>> posted_ TESSERA_GUARDED_BY(mutex_);
  bool started_ TESSERA_GUARDED_BY(mutex_) = false;
  bool closing_ TESSERA_GUARDED_BY(mutex_) = false;
  std::exception_ptr start_failure_ TESSERA_GUARDED_BY(mutex_);
  std::set<int> ids_ TESSERA_GUARDED_BY(mutex_);  ///< in use, reserved, or used before

  // Of the communication thread.
  std::map<int, std::shared_ptr<Context>> contexts_;
  std::vector<std::shared_ptr<Context>> polled_;  ///< the same, to walk through while contexts_ may change
  std::set<int> closed_;
  struct Unclaimed {
    Rank source;
    Packet packet;
  };
  std::map<int, std::vector<Unclaimed>> unclaimed_;  ///< signals for communicators that peers have made before this rank
  std::set<Rank> dead_;
  std::set<Rank> goodbyes_;
  bool any_failure_ = false;
  std::optional<Farewell> farewell_;

  std::thread thread_;
};

}  // namespace tessera::comm::mpi
