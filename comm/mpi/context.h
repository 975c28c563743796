// One communicator as this rank sees it: which operations run, what the peers have said, what has failed.
//
// The first half may be called from any thread. The second belongs to the communication thread: it starts operations in the order of the
// calls, takes signals from peers, and watches deadlines.
//
// An interrupt ends an epoch, at the same operation on all ranks:
//   1. each rank begins no more operations and tells its peers how many it has begun (interrupt);
//   2. what all ranks have begun is completed, the rest stops sending and cancels its receives;
//   3. each rank tells every peer how many messages it has sent to it (settle), and takes what is still on its way to itself.
// Then nothing of the epoch moves, and the stopped operations end. When all ranks have asked to resume, the next epoch begins.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/inquest.h"
#include "comm/mpi/exchange.h"
#include "comm/mpi/signal.h"
#include "comm/recorder.h"
#include "core/mutex.h"

namespace tessera::comm::mpi {

using Cause = std::shared_ptr<const Failure>;

/// What makes a Context.
struct Group {
  int id = 0;                      ///< the same on all members, used by no other communicator of a member
  std::vector<Rank> world_ranks;   ///< of the members, in the order of their rank here
  std::vector<std::string> hosts;  ///< of the members
  Rank rank;
};

class Context final : public ExchangeHost, public std::enable_shared_from_this<Context> {
 public:
  using FoundDead = std::function<void(Rank world_rank)>;

  /// `scratch` is `layout.total()` bytes that live as long as `scratch_owner`.
  Context(Group group, const TransportOptions& options, ScratchLayout layout, std::byte* scratch, std::shared_ptr<const void> scratch_owner,
          Wire& wire, FoundDead found_dead);

  int size() const { return static_cast<int>(group_.world_ranks.size()); }
  Rank rank() const override { return group_.rank; }
  const std::vector<std::string>& hosts() const { return group_.hosts; }
  const std::vector<Rank>& world_ranks() const override { return group_.world_ranks; }
  const TransportOptions& options() const { return options_; }

  // Any thread.
  void join(std::shared_ptr<FlightRecorder> recorder) { recorder_ = std::move(recorder); }  ///< before anything else
  /// Before the operation is queued: what fails meanwhile ends it at once.
  void submit(const std::shared_ptr<Operation>& operation);
  /// Its turn on its stream has come; false where it is over, or about to be.
  bool begin(const std::shared_ptr<Operation>& operation);
  void forget(const std::shared_ptr<Operation>& operation);
  /// False where there was a cause already; else what the communication thread must do is stop().
  bool interrupt(const std::string& cause);
  bool interrupted() const;
  Cause cause() const;
  /// Blocks until all operations are over or the communicator has failed; false where the deadline came first.
  bool wait_for_operations();
  std::int32_t epoch() const;
  /// Blocks until the epoch is another one; returns why it is not going to be.
  Cause wait_for_epoch_after(std::int32_t epoch);
  Traffic traffic() const;

  // The communication thread.
  void start(const std::shared_ptr<Operation>& operation);
  void stop();
  void ask_to_resume(Clock::time_point since);
  void cannot_resume();  ///< operations are held up by their streams
  void leave(const OperationCounts& counts);
  void close() { closed_ = true; }
  enum class Tell : std::uint8_t { nobody, members };
  void fail(Failure failure, Tell tell, const std::vector<Rank>& dead = {});
  void abort(const std::string& cause);
  void process_died(Rank world_rank);
  void process_left(Rank world_rank);  ///< it holds no communicator any more
  void take(Rank world_source, const SignalHead& head, const std::byte* data, std::size_t size);
  void poll(Clock::time_point now);
  bool busy() const;
  bool removable() const;
  bool failed() const { return failed_; }

  // ExchangeHost
  Wire& wire() override { return wire_; }
  int context() const override { return group_.id; }
  const ScratchLayout& scratch_layout() const override { return layout_; }
  std::byte* scratch() override { return scratch_; }
  Bytes chunk(Rank peer) const override {
    const bool same_host = group_.hosts[static_cast<std::size_t>(peer.value)] == group_.hosts[static_cast<std::size_t>(group_.rank.value)];
    return same_host ? largest_message_ : std::max(Bytes(1), Bytes(largest_message_.value / 2));
  }
  void sent(Rank peer, Channel channel, int stream, Bytes bytes) override;
  void received(Rank peer, Channel channel, int stream, Bytes bytes) override;
  void request_failed(Rank peer, const Operation& operation, int error) override;
  int& on_their_way(Rank to) override { return peer(to).on_their_way; }
  void advance() override;

 private:
  struct Peer {
    std::array<std::deque<WireHeader>, kChannels> early;  ///< of operations that this rank is not in yet
    std::optional<OperationCounts> left;
    bool gone = false;
    MessageCounts sent{}, received{};
    int on_their_way = 0;
    std::optional<OperationCounts> begun;    ///< after an interrupt
    std::optional<MessageCounts> announced;  ///< what it says it has sent to this rank, after that
    bool resumed = false;
  };

  Peer& peer(Rank rank) { return peers_[static_cast<std::size_t>(rank.value)]; }
  bool is_self(std::size_t r) const { return r == static_cast<std::size_t>(group_.rank.value); }
  std::string described(const Operation& operation) const;
  void signal(Rank to, const Packet& packet);
  void signal_all(const Packet& packet);

  void start_waiting(std::size_t channel);
  void start_exchange(const std::shared_ptr<Operation>& operation);
  std::vector<std::shared_ptr<Exchange>> active() const;  ///< of all channels
  const Operation* first_active() const;
  void accept(Rank from, const WireHeader& header, Exchange& exchange);
  bool check_left(const Exchange& exchange);
  void finish_complete();
  void end_failed(Clock::time_point now);

  void take_header(Rank from, const WireHeader& header);
  void take_interrupt(Rank from, PacketReader& in);
  void take_settle(Rank from, PacketReader& in);
  void take_leave(Rank from, PacketReader& in);
  void take_abort(PacketReader& in);
  void answer_ping(Rank from, std::int32_t number);

  /// Operations that are still queued on their streams are over then.
  void end_queued(const Cause& why) TESSERA_EXCLUDES(mutex_);
  bool all_have_begun(const Exchange& exchange) const;
  void settle();
  bool drained() const;
  void drain();
  bool quiet() const;
  bool idle() const;  ///< all operations are over
  void poll_epoch();
  void begin_epoch();

  std::vector<Wait> waits() const;
  void poll_deadlines(Clock::time_point now);
  void hold_inquest(const Wait& wait);
  void conclude_inquest(Clock::time_point now);
  bool check_turns(Clock::time_point now);

  const Group group_;
  const TransportOptions options_;
  const ScratchLayout layout_;
  /// Fits into the scratch, so that an interrupted one can be taken there. Between hosts half of it: acknowledgements queue behind what is
  /// on its way, so that must not be much.
  const Bytes largest_message_;
  std::byte* const scratch_;
  const std::shared_ptr<const void> scratch_owner_;
  Wire& wire_;
  const FoundDead found_dead_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::atomic<std::int64_t> payload_sent_{0}, payload_received_{0}, control_sent_{0}, control_received_{0};

  mutable core::Mutex mutex_;
  core::CondVar changed_;
  Cause failure_ TESSERA_GUARDED_BY(mutex_);
  Cause interruption_ TESSERA_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Operation>> operations_ TESSERA_GUARDED_BY(mutex_);  ///< submitted and not over
  std::int32_t epoch_ TESSERA_GUARDED_BY(mutex_) = 0;

  // Of the communication thread.
  std::int32_t now_epoch_ = 0;
  bool failed_ = false, closed_ = false;
  std::vector<Peer> peers_;
  OperationCounts begun_{};
  std::array<std::map<std::int64_t, std::shared_ptr<Operation>>, kChannels> waiting_turn_;
  std::array<std::deque<std::shared_ptr<Exchange>>, kChannels> active_;
  std::vector<std::shared_ptr<Exchange>> failing_;  ///< ended as soon as their receives are
  Clock::time_point end_failing_at_{};
  bool stopping_ = false, settled_ = false, stopped_ = false;
  bool draining_ = false;  ///< a message is on its way into the scratch, to be thrown away
  Clock::time_point stopping_since_{};
  bool resume_wanted_ = false, resume_sent_ = false;
  Clock::time_point resume_wanted_since_{};
  struct Early {
    Rank source;
    Packet packet;
  };
  std::vector<Early> next_epoch_;  ///< signals of peers that have resumed before this rank
  std::optional<Inquest> inquest_;
  std::int32_t inquests_ = 0;
};

}  // namespace tessera::comm::mpi
