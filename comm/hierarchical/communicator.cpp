#include "comm/hierarchical/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "comm/membership.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "tessera/error.h"

namespace tessera::comm::hierarchical {

namespace {

constexpr int kMovingChannels = 2;  // gather and reduce
constexpr int kHalves = 2;          // pieces under way: one between hosts, one within
constexpr Bytes kLargestWindow{1 << 20};

/// Bytes of one window: a piece of every host's.
Bytes window_bytes(const Places& places, Bytes chunk) {
  return Bytes(std::max(std::min(chunk, kLargestWindow).value, std::int64_t{8} * places.hosts) / 64 * 64 + 64);
}
Bytes windows_bytes(const Places& places, Bytes chunk) { return window_bytes(places, chunk) * (kMovingChannels * kHalves); }

const std::byte* at(const void* data, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + to_bytes(Elements(elements), dtype).value;
}
std::byte* at(void* data, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + to_bytes(Elements(elements), dtype).value;
}

// A failure that was found elsewhere is told to parts of the world in which its culprit may be nobody: there it has a number below 0.
Rank from_whole(Rank rank) { return Rank(-1 - rank.value); }
bool is_from_whole(Rank rank) { return rank.value < 0; }

/// In the world's ranks, what a part of it says; `ranks` are its members.
Failure translated(const CommFailure& e, const std::string& where, const std::vector<Rank>& ranks) {
  Failure out;
  bool heard = false;
  for (const Rank r : e.culprits) {
    heard = heard || is_from_whole(r);
    if (is_from_whole(r)) out.culprits.push_back(from_whole(r));
    else if (static_cast<std::size_t>(r.value) < ranks.size()) out.culprits.push_back(ranks[static_cast<std::size_t>(r.value)]);
  }
  out.verb = e.verb;
  out.unit = e.unit;
  out.message = heard ? std::string(e.what()) : fmt::format("{} (there counted from 0): {}", where, e.what());
  return out;
}

}  // namespace

class HierarchicalCommunicator::Mover {
 public:
  Mover(Communicator& whole, const Places& places, const TransportOptions& options, const std::shared_ptr<MemoryLedger>& ledger)
      : places_(places), window_(window_bytes(places, options.chunk)) {
    const int rank = whole.rank().value, host = places.host_of(rank), index = places.index_of(rank);
    for (int i = 0; i < places.per_host; ++i) on_host_.emplace_back(host * places.per_host + i);
    for (int h = 0; h < places.hosts; ++h) across_.emplace_back(h * places.per_host + index);
    TransportOptions within = options;
    within.shared_memory = Bytes(0);
    const auto account = ledger != nullptr ? ledger : std::make_shared<MemoryLedger>();
    local_ = node::assemble(whole, host, rank, within, account);
    cross_ = whole.split(index, rank, account, options.deadline);
    windows_ = local_->allocate_shared(windows_bytes(places, options.chunk), Category::communication, account);
  }

  node::NodeCommunicator& local() { return *local_; }
  Communicator& cross() { return *cross_; }

  /// In the order of the calls, which may come from several streams. Throws what stands in the way, in the world's ranks, as a Failure.
  void move(const Operation& operation) {
    wait_turn(operation);
    const char* where = "between hosts";
    const std::vector<Rank>* ranks = &across_;
    try {
      Pieces pieces(*this, operation);
      if (operation.verb == Verb::all_gather) pieces.gather(where, ranks);
      else pieces.reduce(where, ranks);
    } catch (const CommFailure& e) { throw translated(e, fmt::format("{} ({})", where, list_ranks(*ranks)), *ranks); }
  }

  /// The first cause stays. Tells everybody who may wait for this rank.
  void fail(Communicator& whole, const Failure& failure) {
    {
      const core::MutexLock lock(mutex_);
      if (failure_ != nullptr) return;
      failure_ = std::make_shared<const Failure>(failure);
    }
    Insider::abort_with(whole, failure);
    Failure for_parts = failure;
    for (Rank& r : for_parts.culprits) r = from_whole(r);
    Insider::abort_with(*local_, for_parts);
    Insider::abort_with(*cross_, for_parts);
  }
  std::shared_ptr<const Failure> failure() const {
    const core::MutexLock lock(mutex_);
    return failure_;
  }

  // Operations of each channel that have not ended, in the order of the calls.
  void begin(const Operation& operation) {
    const core::MutexLock lock(mutex_);
    unfinished_[index(operation)].push_back(&operation);
  }
  void end(const Operation& operation) {
    const core::MutexLock lock(mutex_);
    std::erase(unfinished_[index(operation)], &operation);
    changed_.notify_all();
  }
  /// False where the deadline comes first.
  bool wait_until_quiet(std::chrono::steady_clock::time_point deadline) {
    const core::MutexLock lock(mutex_);
    const auto quiet = [this]() TESSERA_REQUIRES(mutex_) {
      return std::all_of(unfinished_.begin(), unfinished_.end(), [](const auto& of_channel) { return of_channel.empty(); });
    };
    while (!quiet())
      if (!changed_.wait_until(mutex_, deadline)) return quiet();
    return true;
  }

 private:
  class Pieces {
   public:
    Pieces(Mover& mover, const Operation& operation)
        : m_(mover),
          op_(operation),
          dtype_(operation.verb == Verb::all_gather ? operation.dtype : operation.shard_dtype),
          channel_(static_cast<int>(operation.label.channel)),
          most_(std::max<std::int64_t>(1, m_.window_.value / size_of(dtype_) / m_.places_.hosts)),
          pieces_((op_.count.value + most_ - 1) / most_) {}

    void gather(const char*& where, const std::vector<Rank>*& ranks) {
      std::array<Pending, kHalves> on_wire;
      if (pieces_ > 0) on_wire[0] = gather_across(0);
      for (std::int64_t k = 0; k < pieces_; ++k) {
        where = "between hosts", ranks = &m_.across_;
        on_wire[half(k)].wait_host();
        if (k + 1 < pieces_) on_wire[half(k + 1)] = gather_across(k + 1);
        where = "within a host", ranks = &m_.on_host_;
        within(k, Verb::all_gather);
      }
    }

    void reduce(const char*& where, const std::vector<Rank>*& ranks) {
      std::array<Pending, kHalves> on_wire;
      for (std::int64_t k = 0; k < pieces_; ++k) {
        where = "between hosts", ranks = &m_.across_;
        on_wire[half(k)].wait_host();  // its window is free again
        where = "within a host", ranks = &m_.on_host_;
        within(k, Verb::reduce_scatter);
        on_wire[half(k)] = m_.cross_->reduce_scatter({window(k)}, {at(op_.destination.data, first(k), dtype_)}, Elements(size(k)), dtype_,
                                                     op_.fold, label(k), m_.streams_[static_cast<std::size_t>(channel_)]);
      }
      where = "between hosts", ranks = &m_.across_;
      for (Pending& pending : on_wire) pending.wait_host();
    }

   private:
    static std::size_t half(std::int64_t k) { return static_cast<std::size_t>(k % kHalves); }
    std::int64_t first(std::int64_t k) const { return k * most_; }
    std::int64_t size(std::int64_t k) const { return std::min(most_, op_.count.value - first(k)); }
    std::byte* window(std::int64_t k) const {
      return m_.windows_.data() + (m_.window_ * (channel_ * kHalves + static_cast<int>(half(k)))).value;
    }
    Label label(std::int64_t k) const {
      Label out = op_.label;
      out.detail ^= static_cast<std::uint64_t>(k) << 32;
      return out;
    }

    Pending gather_across(std::int64_t k) {
      return m_.cross_->all_gather({at(op_.source.data, first(k), dtype_)}, {window(k)}, Elements(size(k)), dtype_, label(k),
                                   m_.streams_[static_cast<std::size_t>(channel_)]);
    }

    // For each host's shards: a piece of each, spread from or added up into this rank's window.
    void within(std::int64_t k, Verb verb) {
      const int hosts = m_.places_.hosts, per_host = m_.places_.per_host;
      std::vector<Pending> all;
      for (int h = 0; h < hosts; ++h) {
        auto part = std::make_shared<Operation>();
        part->verb = verb;
        part->label = label(k);
        part->label.use += h << 16;
        part->dtype = op_.dtype;
        part->shard_dtype = dtype_;
        part->count = Elements(size(k));
        part->parts = per_host;
        part->stride = op_.count;
        std::byte* own = window(k) + to_bytes(Elements(h * size(k)), dtype_).value;
        const std::int64_t offset = h * per_host * op_.count.value + first(k);
        if (verb == Verb::all_gather) {
          part->source.data = own;
          part->destination.data = at(op_.destination.data, offset, op_.dtype);
        } else {
          part->source.data = at(op_.source.data, offset, op_.dtype);
          part->destination.data = own;
        }
        all.push_back(Insider::submit(*m_.local_, std::move(part), m_.local_streams_[static_cast<std::size_t>(channel_)]));
      }
      for (Pending& pending : all) pending.wait_host();
    }

    Mover& m_;
    const Operation& op_;
    const DType dtype_;  ///< of what travels between hosts
    const int channel_;
    const std::int64_t most_, pieces_;
  };

  static std::size_t index(const Operation& operation) { return static_cast<std::size_t>(operation.label.channel); }
  // Those before it are announced too, so each ends within its deadline, or all fail.
  void wait_turn(const Operation& operation) {
    const core::MutexLock lock(mutex_);
    while (unfinished_[index(operation)].front() != &operation) changed_.wait(mutex_);
  }

  const Places places_;
  const Bytes window_;
  std::vector<Rank> on_host_, across_;
  std::shared_ptr<node::NodeCommunicator> local_;
  std::shared_ptr<Communicator> cross_;
  Buffer windows_;
  std::array<Stream, kMovingChannels> streams_{Stream("between hosts, gather"), Stream("between hosts, reduce")};
  std::array<Stream, kMovingChannels> local_streams_{Stream("within the host, gather"), Stream("within the host, reduce")};
  mutable core::Mutex mutex_;
  core::CondVar changed_;
  std::array<std::deque<const Operation*>, kChannels> unfinished_ TESSERA_GUARDED_BY(mutex_);
  std::shared_ptr<const Failure> failure_ TESSERA_GUARDED_BY(mutex_);
};

HierarchicalCommunicator::HierarchicalCommunicator(std::shared_ptr<Communicator> whole, const Places& places,
                                                   const TransportOptions& options, std::shared_ptr<MemoryLedger> ledger)
    : Communicator(whole->rank(), whole->size(), options.deadline),
      whole_(std::move(whole)),
      places_(places),
      options_(options),
      mover_(std::make_shared<Mover>(*whole_, places, options, ledger)) {
  before_ = traffic();
}

HierarchicalCommunicator::~HierarchicalCommunicator() { HierarchicalCommunicator::leave(); }

void HierarchicalCommunicator::start(std::shared_ptr<Operation> operation, Stream& stream) {
  const bool moves =
      operation->label.channel != Channel::control &&
      (operation->verb == Verb::all_gather || (operation->verb == Verb::reduce_scatter && options_.reduce_order == ReduceOrder::natural));
  auto announcement = std::make_shared<Operation>();
  static_cast<OperationIdentity&>(*announcement) = *operation;
  announcement->announced = moves;
  if (!moves) {
    announcement->source = operation->source;
    announcement->destination = operation->destination;
  }
  // After a failure of the data's way `whole` was left, and would call it the caller's mistake.
  std::shared_ptr<Pending> came;
  try {
    if (mover_->failure() == nullptr) came = std::make_shared<Pending>(Insider::submit(*whole_, std::move(announcement), stream));
  } catch (const UsageError&) {
    if (mover_->failure() == nullptr) throw;
  }
  if (came == nullptr) {
    operation->fail(mover_->failure(), Operation::Unless::ended);
    return;
  }
  mover_->begin(*operation);
  stream.enqueue([mover = mover_, whole = whole_, came, moves, operation = std::move(operation)] {
    std::shared_ptr<const Failure> why;
    if (operation->begin()) {
      try {
        came->wait_host();
        if (moves) mover->move(*operation);
      } catch (const StepInterrupted& e) {
        Failure failure = interruption(e.rank, e.cause);
        why = std::make_shared<const Failure>(std::move(failure));
      } catch (const CommFailure& e) {
        Failure failure;
        failure.message = e.what();
        failure.culprits = e.culprits;
        failure.verb = e.verb;
        failure.unit = e.unit;
        operation->waits_for(e.culprits);
        why = std::make_shared<const Failure>(std::move(failure));
      } catch (const Failure& failure) {
        mover->fail(*whole, failure);
        why = mover->failure();
      } catch (const std::exception& e) {  // nobody above: this is a worker thread
        Failure failure;
        failure.culprits = {whole->rank()};
        failure.verb = name_of(operation->verb);
        failure.message = fmt::format("rank {} could not move its data: {}", whole->rank().value, e.what());
        mover->fail(*whole, failure);
        why = mover->failure();
      }
      if (why == nullptr) operation->finish();
      else operation->fail(why, Operation::Unless::ended);
    }
    mover->end(*operation);
  });
}

std::shared_ptr<Communicator> HierarchicalCommunicator::split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                                              std::chrono::milliseconds deadline) {
  check_deadline(deadline);
  TransportOptions options = options_;
  options.deadline = deadline;
  const Membership group = agree_on_members(*this, color, key);
  std::vector<std::uint64_t> keys;
  for (const Rank member : group.members) keys.push_back(static_cast<std::uint64_t>(places_.host_of(member.value)));
  const std::optional<Places> places = places_of(keys);
  std::shared_ptr<Communicator> whole = whole_->split(color, key, ledger, deadline);
  // A part of the ranks is served by `whole` alone: how much scratch it takes must not depend on which ranks they are.
  if (!places || keys.size() != static_cast<std::size_t>(size())) return whole;
  return std::make_shared<HierarchicalCommunicator>(std::move(whole), *places, options, std::move(ledger));
}

Bytes HierarchicalCommunicator::scratch_bytes(int size) const {
  check_size(size);
  if (size != this->size()) return whole_->scratch_bytes(size);
  return whole_->scratch_bytes(size) + mover_->local().scratch_bytes(places_.per_host) + whole_->scratch_bytes(places_.hosts) +
         windows_bytes(places_, options_.chunk);
}

std::string HierarchicalCommunicator::reserve(Bytes bytes) {
  // Each host answers for itself; what one lacks is said on all.
  const std::string refused = mover_->local().reserve(bytes);
  std::array<char, 256> mine{};
  refused.copy(mine.data(), mine.size() - 1);
  std::vector<std::array<char, 256>> all(static_cast<std::size_t>(size()));
  Stream stream("tessera reserve");
  whole_->all_gather({mine.data()}, {all.data()}, Elements(static_cast<std::int64_t>(mine.size())), DType::u8, {}, stream).wait_host();
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r][0] != '\0') return fmt::format("on {}: {}", host_of(Rank(static_cast<int>(r))), all[r].data());
  return {};
}

Buffer HierarchicalCommunicator::allocate(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) {
  return mover_->local().allocate(bytes, category, std::move(ledger));
}

void HierarchicalCommunicator::name_units(std::vector<std::string> names) {
  whole_->name_units(names);
  mover_->local().name_units(names);
  mover_->cross().name_units(names);
  Communicator::name_units(std::move(names));
}

void HierarchicalCommunicator::set_deadline(std::chrono::milliseconds deadline) {
  Communicator::set_deadline(deadline);
  whole_->set_deadline(deadline);
  mover_->local().set_deadline(deadline);
  mover_->cross().set_deadline(deadline);
}

void HierarchicalCommunicator::resume() {
  if (const auto why = mover_->failure()) raise(*why, {}, dump());
  // Data of the old epoch still moves where all had begun it; a rank that stays in it is named by those it keeps waiting.
  if (!mover_->wait_until_quiet(std::chrono::steady_clock::now() + deadline())) whole_->abort(held_up_message(rank(), deadline()));
  whole_->resume();
  recorder().restart();
}

void HierarchicalCommunicator::leave() noexcept {
  if (recorder().left()) return;
  recorder().leave();
  whole_->leave();
  mover_->local().leave();
  mover_->cross().leave();
}

void HierarchicalCommunicator::abort(const std::string& cause) noexcept {
  if (recorder().left()) return;
  whole_->abort(cause);
  mover_->local().abort(cause);
  mover_->cross().abort(cause);
  leave();
}

Traffic HierarchicalCommunicator::traffic() const {
  Traffic out = whole_->traffic();
  for (const Traffic& part : {mover_->local().traffic(), mover_->cross().traffic()}) {
    out.payload_sent += part.payload_sent;
    out.payload_received += part.payload_received;
    out.control_sent += part.control_sent;
    out.control_received += part.control_received;
  }
  out.control_sent -= before_.control_sent;
  out.control_received -= before_.control_received;
  return out;
}

}  // namespace tessera::comm::hierarchical
