// Five collectives between ranks, and what happens when one of them fails.
//
// Every verb is collective, asynchronous on a Stream and returns a Pending. The operations of one channel run in the order of
// the calls, which must be the same on every rank, as if one at a time; the three channels do not order each other. Each operation carries
// its identity (channel, sequence number, step, leaf, use, verb, unit, bytes); ranks that disagree all throw CommFailure naming both sides.
// A rank that dies, stalls past the deadline or leaves makes every operation of the others throw CommFailure naming it.
//
// reduce_scatter and a summing all_reduce add contributions in rank order from +0, each element as ((0 + c_0) + c_1) + ... (but for
// ReduceOrder::natural on the hierarchical transport), f32, bf16 and f16 in f32 (rounded once at the end), f64 in f64, integers exactly:
// the bits do not depend on chunks or timing.
//
// The public half checks, counts, numbers and records; a transport (thread, mpi ...) implements the private half.
// Calls on one communicator come from one thread at a time; Pendings may be waited for anywhere.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/memory.h"
#include "tessera/stream.h"
#include "tessera/types.h"

namespace tessera {

enum class Channel : std::uint8_t { gather, reduce, control };
inline constexpr int kChannels = 3;
enum class Verb : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, barrier };
enum class Fold : std::uint8_t {
  start,   ///< the sum starts from +0; the destination may be the owner's own range of the source
  onward,  ///< the sum starts from what the destination holds; then the destination must not overlap the source
};
enum class ReduceOp : std::uint8_t { sum, max, min };

std::string_view name_of(Channel channel);
std::string_view name_of(Verb verb);

/// What an operation is for: compared between ranks (together with verb, element type and size), shown in errors and traces.
struct Label {
  Channel channel = Channel::control;
  UnitId unit = kNoUnit;
  std::int64_t step = -1;
  std::int64_t leaf = -1;    ///< this rank's micro-batch number within the step; the same on all ranks
  std::int32_t use = 0;      ///< which use of the unit in the leaf, or which segment of the flat
  std::uint64_t detail = 0;  ///< anything else that must be equal on all ranks (a set of tensors, a hash)
};

/// Memory a collective reads, and what keeps it alive until the operation is over. An empty owner leaves that to the caller.
struct ConstRegion {
  const void* data = nullptr;
  std::shared_ptr<const void> owner{};
};
/// Memory a collective writes.
struct Region {
  void* data = nullptr;
  std::shared_ptr<const void> owner{};
};

struct Operation;  // comm/operation.h
namespace comm {
struct Failure;  // comm/failure.h
struct Insider;  // comm/operation.h
}  // namespace comm

/// A collective on its way. Owns what the operation touches.
/// Destroying it unfinished waits, except after a failure: then its buffers pass to the communicator.
class [[nodiscard]] TESSERA_API Pending {
 public:
  Pending() = default;  ///< nothing pending: done
  explicit Pending(std::shared_ptr<Operation> operation);
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  bool done() const;             ///< finished or failed; does not block
  void wait_host();              ///< blocks the caller; throws CommFailure or StepInterrupted
  void wait_on(Stream& stream);  ///< what is enqueued on `stream` later runs after this operation; does not block

 private:
  std::shared_ptr<Operation> operation_;
};

/// In which order a sum adds the ranks' contributions.
enum class ReduceOrder : std::uint8_t {
  natural,  ///< what the transport does best: rank order on thread, node and mpi; on hierarchical first within hosts, then between them
  leaf,     ///< rank order on every transport; on hierarchical this sends every rank's contribution between hosts
};

/// Settings of a transport; the same on all ranks.
struct TransportOptions {
  /// Most bytes moved at a time. Larger chunks cost scratch: two per peer on mpi, which makes them smaller where that would exceed
  /// 8 MiB. 1 KiB is for tests.
  Bytes chunk = Bytes(1 << 20);
  /// From submission to CommFailure. Longer tolerates slower peers and reports dead ones later.
  std::chrono::milliseconds deadline{60'000};
  /// For tests: each phase of each operation first sleeps a random time up to this.
  std::chrono::microseconds random_delay{0};
  /// node: most bytes that the ranks of a host share, all together; 0 is what the host and the control group have free. A model that
  /// needs more still runs, over copies.
  Bytes shared_memory{};
  /// hierarchical: in which order contributions are added.
  ReduceOrder reduce_order = ReduceOrder::natural;
  /// hierarchical: ranks in a row that count as one host; 0 is as the hosts are. Other values are for tests.
  int ranks_per_node = 0;
};

/// Bytes that crossed rank boundaries, counted at the sender and at the receiver. Payload is what the gather and reduce channels
/// move; control is everything else, headers included.
struct Traffic {
  Bytes payload_sent{}, payload_received{}, control_sent{}, control_received{};
};

/// One line of the flight recorder.
struct OperationRecord {
  Verb verb{};
  Label label{};
  std::int64_t sequence = 0;
  Bytes bytes{};                                                             ///< of the full buffer
  std::chrono::steady_clock::time_point submitted{}, started{}, finished{};  ///< epoch where not yet
  bool failed = false;
  std::vector<Rank> waiting_for{};  ///< peers that had not come when it failed or was dumped
};

class TESSERA_API Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view transport() const = 0;    ///< "thread", "mpi" ...
  virtual std::string host_of(Rank rank) const = 0;  ///< host name, known since start-up

  /// `full` on every rank becomes the shards in rank order. `shard` may be the rank's own range of `full`.
  Pending all_gather(ConstRegion shard, Region full, Elements per_rank, DType dtype, const Label& label, Stream& stream);

  /// `shard` on rank r becomes the sum over ranks of elements [r·per_rank, (r+1)·per_rank) of their `full`, in rank order.
  /// `shard` holds elements of `shard_dtype` where one is given, else of `dtype`: f32 for a `full` of bf16 or f16, so that a sum that goes
  /// onward over several calls is never rounded between them; the two regions must then not overlap.
  Pending reduce_scatter(ConstRegion full, Region shard, Elements per_rank, DType dtype, Fold fold, const Label& label, Stream& stream,
                         std::optional<DType> shard_dtype = {});

  /// `data` on every rank becomes the sum (in rank order), maximum or minimum over ranks, element by element.
  /// NaN wins a maximum or minimum.
  Pending all_reduce(Region data, Elements count, DType dtype, ReduceOp op, const Label& label, Stream& stream);

  /// `data` on every rank becomes the root's.
  Pending broadcast(Region data, Elements count, DType dtype, Rank root, const Label& label, Stream& stream);

  /// Done when all ranks have come.
  Pending barrier(const Label& label, Stream& stream);

  /// Collective; blocks. Ranks with the same colour form a communicator, ordered by (key, rank), with sequence numbers, traffic
  /// and failures of its own. Its scratch is entered in `ledger` under Category::communication. `deadline` replaces the parent's.
  virtual std::shared_ptr<Communicator> split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                              std::chrono::milliseconds deadline) = 0;

  /// Bytes of scratch that a communicator of `size` ranks from split() holds. Local and pure: the forecast asks before anything is
  /// allocated.
  virtual Bytes scratch_bytes(int size) const = 0;

  /// True where the shards of a unit can already form its full flat for every rank (allocate_flat), so that a gather copies nothing and
  /// needs no slot: in worlds of one rank, and where ranks share memory.
  virtual bool full_flat_addressable() const = 0;

  /// Collective; blocks. Asks whether allocate() and allocate_flat() may give `bytes` to this rank, and to the others what they ask for,
  /// out of memory that ranks share. Empty: yes. Otherwise why not, the same on every rank; then allocate() gives private memory, which
  /// costs copies, and full_flat_addressable() is false. Where nothing is shared there is nothing to refuse.
  virtual std::string reserve(Bytes bytes);

  /// Memory fit for this transport. Local.
  virtual Buffer allocate(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger);

  /// Memory of all ranks' shards, in rank order.
  struct Flat {
    Buffer shard;                     ///< this rank's: entered in its ledger, written by it alone
    const std::byte* full = nullptr;  ///< the first rank's; read it only where all ranks have said that theirs is written (a barrier)
  };
  /// Every rank must ask for the same flats in the same order. Throws UsageError unless full_flat_addressable().
  virtual Flat allocate_flat(Bytes per_rank, Category category, std::shared_ptr<MemoryLedger> ledger);

  /// Names for errors and dumps: names[i] belongs to UnitId(i).
  virtual void name_units(std::vector<std::string> names);
  std::string unit_name(UnitId unit) const;  ///< "unit #7" where no name is known, empty for kNoUnit

  /// Local, does not block. What all ranks have begun is completed; every other pending and every later operation of this communicator
  /// throws StepInterrupted on every rank, naming this rank (or whoever was first) and the cause, until all ranks have called resume().
  /// An operation thus ends alike on all ranks.
  virtual void interrupt(const std::string& cause) = 0;
  /// True between an interrupt seen here (own or a peer's) and resume(). Does not block.
  virtual bool interrupted() const = 0;
  /// Collective; blocks until no rank touches another's buffers and old traffic is drained. All channels' sequence numbers start
  /// again, equal on all ranks. Throws CommFailure if a rank has left or does not come within the deadline.
  virtual void resume() = 0;

  /// Local, does not block for peers. Announces the last sequence number of each channel: peers that wait for a later operation throw
  /// CommFailure at once, naming this rank and both numbers. Called by the destructor too. After it, every verb throws UsageError.
  virtual void leave() noexcept = 0;
  /// Like leave, but because of an error: peers' pending and later operations throw CommFailure naming this rank and the cause.
  virtual void abort(const std::string& cause) noexcept = 0;

  std::int64_t submitted(Channel channel) const;  ///< operations so far on this channel, since construction or resume()
  virtual Traffic traffic() const = 0;
  std::vector<OperationRecord> recent() const;  ///< the last 64 operations, oldest first
  std::string dump() const;                     ///< recent() as text
  /// Called on a worker thread whenever an operation ends; what it throws is dropped. Set it before the first operation.
  void on_finish(std::function<void(const OperationRecord&)> callback);
  /// Later operations get `deadline` more time. For phases that are known to be long (compilation, evaluation on one rank).
  virtual void set_deadline(std::chrono::milliseconds deadline);
  std::chrono::milliseconds deadline() const;

 protected:
  Communicator(Rank rank, int size, std::chrono::milliseconds deadline);
  struct Recorder;
  Recorder& recorder() { return *recorder_; }
  const std::shared_ptr<Recorder>& shared_recorder() const { return recorder_; }

 private:
  /// The transport's half: brings `operation` to its end after what `stream` already holds; must not block the caller.
  virtual void start(std::shared_ptr<Operation> operation, Stream& stream) = 0;
  /// A communicator that was made over this one has failed: a peer may be gone, and the end of this one waits for none that is silent.
  virtual void failed_elsewhere() noexcept {}
  /// Like abort(), for a failure that is known already: peers throw it as it is, culprits included.
  virtual void abort_with(const comm::Failure& failure) noexcept;
  Pending submit(std::shared_ptr<Operation> operation, Stream& stream);
  friend struct comm::Insider;

  Rank rank_;
  int size_;
  std::shared_ptr<Recorder> recorder_;  // operations on their way share it
};

}  // namespace tessera
