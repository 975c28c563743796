// How one collective's data moves: a header to and from every peer, then chunks, several peers and both directions at once.
//
//   all_gather, broadcast   results: straight from the source into the receiver's memory
//   reduce_scatter          contributions: into scratch, four chunks per peer; each chunk is folded over the ranks in one pass
//   all_reduce              contributions of each rank's part to its owner, then results from the owner to all
//
// Data for a peer is sent only after the peer's header for the same operation has come, so that a receive is always posted.
// The next operation of the channel may be under way already. To each peer and from each its messages come behind this one's, as MPI
// matches them, and so do its contributions in the scratch. Used by the communication thread alone.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/mpi/scratch.h"
#include "comm/mpi/signal.h"
#include "comm/mpi/wire.h"
#include "comm/operation.h"

namespace tessera::comm::mpi {

/// What an exchange needs to know of its communicator, and tells it.
class ExchangeHost {
 public:
  virtual ~ExchangeHost() = default;
  virtual Wire& wire() = 0;
  virtual int context() const = 0;
  virtual Rank rank() const = 0;
  virtual const std::vector<Rank>& world_ranks() const = 0;  ///< of the members
  virtual const ScratchLayout& scratch_layout() const = 0;
  virtual std::byte* scratch() = 0;
  virtual Bytes chunk(Rank peer) const = 0;                                        ///< of gathers; both sides say the same
  virtual void sent(Rank peer, Channel channel, int stream, Bytes bytes) = 0;      ///< one message posted
  virtual void received(Rank peer, Channel channel, int stream, Bytes bytes) = 0;  ///< one message arrived
  virtual void request_failed(Rank peer, const Operation& operation, int error) = 0;
  /// Messages of gathers and reductions that are on their way to the peer. They share the wire in the order of the calls: evenly shared,
  /// all would be whole late and at once, and the wire would rest until the compute has made more.
  virtual int& on_their_way(Rank peer) = 0;
  /// Something has moved: what waited for it may go on, the earliest operation first.
  virtual void advance() = 0;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  /// `before`: the one of the same channel that began before it and is not over, if there is one. `keep`: what must live as long as MPI may
  /// touch the scratch.
  Exchange(ExchangeHost& host, std::shared_ptr<Operation> operation, std::shared_ptr<Exchange> before, std::chrono::microseconds data_delay,
           std::shared_ptr<const void> keep);

  const Operation& operation() const { return *operation_; }
  const std::shared_ptr<Operation>& shared_operation() const { return operation_; }
  /// Posts the first receives; headers may be sent after it.
  void begin();
  /// The peer is in this operation too.
  void peer_came(Rank peer);
  bool has_come(Rank peer) const { return came_[index(peer)]; }
  /// Sends, receives and folds what can be. Also called after each request that is over.
  void advance();
  bool complete() const { return complete_; }
  /// Posts nothing more; receives are cancelled.
  void stop();
  bool stopped() const { return stopped_; }
  std::size_t outstanding() const { return outstanding_; }
  std::size_t outstanding_receives() const { return receives_; }
  /// Ranks that have not come, or whose data has not all moved.
  std::vector<Rank> missing() const;
  /// Memory that stays while requests are outstanding, after the operation has failed.
  Operation::Owners& owners() { return owners_; }

 private:
  static constexpr std::int64_t kWindow = kSlots;  ///< chunks on their way at once, per peer and direction: enough to fill a link
  enum class Direction : std::uint8_t { in, out };

  /// A run of chunks to or from one peer.
  struct Flow {
    std::byte* data = nullptr;  ///< null: contributions into scratch
    std::int64_t bytes = 0, chunk = 1;
    std::int64_t posted = 0, done = 0;  ///< chunks; done ones without a gap
    std::array<bool, kWindow> early{};  ///< done before an earlier one, by chunk % kWindow
    std::int64_t chunks() const { return (bytes + chunk - 1) / chunk; }
    std::int64_t size_of_chunk(std::int64_t k) const { return k + 1 < chunks() ? chunk : bytes - k * chunk; }
    bool over() const { return done == chunks(); }
    bool all_posted() const { return posted == chunks(); }
    void finish(std::int64_t k);
  };
  struct Peer {
    std::array<Flow, kStreams> in, out;  ///< by stream: contributions, results
  };

  /// One chunk always: what younger operations have sent may wait at the peer for this one to end.
  bool may_send(std::size_t peer, const Flow& flow) const {
    return operation_->label.channel == Channel::control || flow.posted == flow.done ||
           host_.on_their_way(Rank(static_cast<int>(peer))) < kWindow;
  }
  std::size_t index(Rank rank) const { return static_cast<std::size_t>(rank.value); }
  int ranks() const { return static_cast<int>(peers_.size()); }
  bool is_self(std::size_t peer) const { return peer == index(host_.rank()); }
  static std::size_t of(int stream) { return static_cast<std::size_t>(stream); }
  void lay_out();
  void move_own_data();
  void post_receives(std::size_t peer, int stream);
  void post_sends(std::size_t peer, int stream);
  bool fold_ready() const;
  void fold_chunk();
  std::byte* slot(std::size_t peer, std::int64_t chunk) const;

  ExchangeHost& host_;
  std::shared_ptr<Operation> operation_;
  std::shared_ptr<Exchange> before_;
  std::shared_ptr<const void> keep_;
  Operation::Owners owners_;
  std::vector<bool> came_;
  std::vector<Peer> peers_;
  std::chrono::steady_clock::time_point data_from_;
  std::int64_t own_elements_ = 0, chunk_elements_ = 1;  ///< that this rank folds, and at a time
  std::int64_t own_first_ = 0;                          ///< of them, in the full buffer
  std::int64_t fold_chunks_ = 0, folded_ = 0;
  std::int64_t first_slot_ = 0;  ///< of the scratch, after those of the one before
  std::size_t outstanding_ = 0, receives_ = 0;
  bool stopped_ = false, complete_ = false;
};

}  // namespace tessera::comm::mpi
