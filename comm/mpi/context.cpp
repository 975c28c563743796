// The life of operations: submitted, started in turn, finished or failed. context_signals.cpp has the rest.
#include "comm/mpi/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/delay.h"
#include "comm/mpi/error.h"

namespace tessera::comm::mpi {

namespace {

// A receive that MPI was asked to cancel ends at once, unless its sender died in the middle.
constexpr std::chrono::milliseconds kCancelling{50};
// Operations of a channel under way: the next one's data follows the last's on the wire, so that the wire does not rest between them.
constexpr std::size_t kAtOnce = 2;

}  // namespace

Context::Context(Group group, const TransportOptions& options, ScratchLayout layout, std::byte* scratch,
                 std::shared_ptr<const void> scratch_owner, Wire& wire, FoundDead found_dead)
    : group_(std::move(group)),
      options_(options),
      layout_(layout),
      largest_message_(group_.world_ranks.size() > 1 ? std::min(options.chunk, layout.total()) : options.chunk),
      scratch_(scratch),
      scratch_owner_(std::move(scratch_owner)),
      wire_(wire),
      found_dead_(std::move(found_dead)),
      peers_(group_.world_ranks.size()) {}

void Context::submit(const std::shared_ptr<Operation>& operation) {
  Cause why;
  {
    const core::MutexLock lock(mutex_);
    why = failure_ != nullptr ? failure_ : interruption_;
    if (why == nullptr) operations_.insert(operation);
  }
  if (why != nullptr) operation->fail(why, Operation::Unless::running);
}

bool Context::begin(const std::shared_ptr<Operation>& operation) {
  const core::MutexLock lock(mutex_);
  // What has failed is ended by whoever made it fail.
  return failure_ == nullptr && interruption_ == nullptr && operation->begin();
}

void Context::forget(const std::shared_ptr<Operation>& operation) {
  const core::MutexLock lock(mutex_);
  operations_.erase(operation);
  changed_.notify_all();
}

bool Context::interrupt(const std::string& cause) {
  Cause why;
  {
    const core::MutexLock lock(mutex_);
    if (failure_ != nullptr || interruption_ != nullptr) return false;
    why = interruption_ = std::make_shared<const Failure>(interruption(group_.rank, cause));
  }
  end_queued(why);
  return true;
}

void Context::end_queued(const Cause& why) {
  std::set<std::shared_ptr<Operation>> operations;
  {
    const core::MutexLock lock(mutex_);
    operations = operations_;
  }
  for (const auto& operation : operations)
    if (operation->fail(why, Operation::Unless::running)) forget(operation);
}

bool Context::interrupted() const {
  const core::MutexLock lock(mutex_);
  return interruption_ != nullptr;
}

Cause Context::cause() const {
  const core::MutexLock lock(mutex_);
  return failure_ != nullptr ? failure_ : interruption_;
}

bool Context::wait_for_operations() {
  const auto deadline = Clock::now() + recorder_->deadline();
  const core::MutexLock lock(mutex_);
  while (failure_ == nullptr && !operations_.empty())
    if (!changed_.wait_until(mutex_, deadline)) return operations_.empty();
  return true;
}

std::int32_t Context::epoch() const {
  const core::MutexLock lock(mutex_);
  return epoch_;
}

Cause Context::wait_for_epoch_after(std::int32_t epoch) {
  const core::MutexLock lock(mutex_);
  while (failure_ == nullptr && epoch_ == epoch) changed_.wait(mutex_);
  return epoch_ == epoch ? failure_ : nullptr;
}

Traffic Context::traffic() const {
  Traffic out;
  out.payload_sent = Bytes(payload_sent_);
  out.payload_received = Bytes(payload_received_);
  out.control_sent = Bytes(control_sent_);
  out.control_received = Bytes(control_received_);
  return out;
}

void Context::sent(Rank to, Channel channel, int stream, Bytes bytes) {
  ++peer(to).sent[static_cast<std::size_t>(static_cast<int>(channel) * kStreams + stream)];
  (channel == Channel::control ? control_sent_ : payload_sent_) += bytes.value;
}

void Context::received(Rank from, Channel channel, int stream, Bytes bytes) {
  ++peer(from).received[static_cast<std::size_t>(static_cast<int>(channel) * kStreams + stream)];
  (channel == Channel::control ? control_received_ : payload_received_) += bytes.value;
}

void Context::request_failed(Rank peer_rank, const Operation& operation, int error) {
  Failure failure;
  failure.culprits = {peer_rank};
  failure.verb = name_of(operation.verb);
  failure.unit = recorder_->unit_name(operation.label.unit);
  failure.message = fmt::format("MPI could not move data between rank {} and rank {} in {}: {}", group_.rank.value, peer_rank.value,
                                described(operation), text_of(error));
  fail(std::move(failure), Tell::members);
}

std::string Context::described(const Operation& operation) const { return describe(operation, recorder_->unit_name(operation.label.unit)); }

void Context::start(const std::shared_ptr<Operation>& operation) {
  if (const Cause why = cause()) {
    operation->fail(why, Operation::Unless::ended);
    return;
  }
  const auto channel = static_cast<std::size_t>(operation->label.channel);
  waiting_turn_[channel].emplace(operation->sequence, operation);
  start_waiting(channel);
}

// The operations of a channel begin in the order of the calls, also where they were submitted to different streams; the next begins before
// the last is over only where nobody could tell.
void Context::start_waiting(std::size_t channel) {
  while (active_[channel].size() < kAtOnce && !failed_ && !stopping_) {
    const auto next = waiting_turn_[channel].find(begun_[channel]);
    if (next == waiting_turn_[channel].end()) return;
    const std::shared_ptr<Operation> operation = next->second;
    if (!active_[channel].empty() && !operation->independent_of(active_[channel].back()->operation())) return;
    waiting_turn_[channel].erase(next);
    start_exchange(operation);
  }
}

void Context::start_exchange(const std::shared_ptr<Operation>& operation) {
  const auto channel = static_cast<std::size_t>(operation->label.channel);
  const auto delay = delay_of(*operation, group_.rank, 1, options_.random_delay);
  std::shared_ptr<Exchange> before = active_[channel].empty() ? nullptr : active_[channel].back();
  const auto exchange = std::make_shared<Exchange>(*this, operation, std::move(before), delay, shared_from_this());
  active_[channel].push_back(exchange);
  ++begun_[channel];
  exchange->begin();
  signal_all(pack(WireHeader::of(*operation, group_.id, now_epoch_)));
  for (std::size_t r = 0; r < peers_.size() && !failed_; ++r) {
    std::deque<WireHeader>& early = peers_[r].early[channel];
    if (early.empty()) continue;
    const WireHeader header = early.front();
    early.pop_front();
    accept(Rank(static_cast<int>(r)), header, *exchange);
  }
  if (!failed_ && check_left(*exchange)) {
    exchange->advance();
    operation->waits_for(exchange->missing());
  }
}

std::vector<std::shared_ptr<Exchange>> Context::active() const {
  std::vector<std::shared_ptr<Exchange>> out;
  for (const auto& of_channel : active_) out.insert(out.end(), of_channel.begin(), of_channel.end());
  return out;
}

const Operation* Context::first_active() const {
  for (const auto& of_channel : active_)
    if (!of_channel.empty()) return &of_channel.front()->operation();
  return nullptr;
}

void Context::accept(Rank from, const WireHeader& header, Exchange& exchange) {
  Operation other;
  header.fill(other, size());
  const Operation& own = exchange.operation();
  if (other.sequence != own.sequence || !other.matches(own)) {
    const bool peer_first = from < group_.rank;
    const Operation& first = peer_first ? other : own;
    const Operation& second = peer_first ? own : other;
    Failure failure;
    failure.culprits = {peer_first ? from : group_.rank, peer_first ? group_.rank : from};
    failure.verb = name_of(first.verb);
    failure.unit = recorder_->unit_name(first.label.unit);
    failure.message = disagreement_message(failure.culprits[0], described(first), failure.culprits[1], described(second));
    fail(std::move(failure), Tell::members);
    return;
  }
  exchange.peer_came(from);
  exchange.advance();
  exchange.shared_operation()->waits_for(exchange.missing());
}

// A peer that has left before this operation will not come.
bool Context::check_left(const Exchange& exchange) {
  const Operation& operation = exchange.operation();
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const Rank gone(static_cast<int>(r));
    if (is_self(r) || !peers_[r].left || exchange.has_come(gone)) continue;
    const std::int64_t calls = (*peers_[r].left)[static_cast<std::size_t>(operation.label.channel)];
    if (operation.sequence < calls) continue;
    Failure failure;
    failure.culprits = {gone};
    failure.verb = name_of(operation.verb);
    failure.unit = recorder_->unit_name(operation.label.unit);
    failure.message = departure_message(gone, calls, operation.label.channel, group_.rank, described(operation));
    fail(std::move(failure), Tell::members);
    return false;
  }
  return true;
}

void Context::advance() {
  std::vector<std::shared_ptr<Exchange>> all = active();
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->operation().submitted < b->operation().submitted; });
  for (const auto& exchange : all) exchange->advance();
}

void Context::finish_complete() {
  advance();  // also what was held back for a while
  for (std::size_t c = 0; c < kChannels; ++c) {
    while (!active_[c].empty() && active_[c].front()->complete() && !failed_) {
      const std::shared_ptr<Exchange> exchange = std::move(active_[c].front());
      active_[c].pop_front();
      exchange->shared_operation()->finish();
      start_waiting(c);
    }
  }
}

void Context::fail(Failure failure, Tell tell, const std::vector<Rank>& dead) {
  if (failed_) return;
  failed_ = true;
  const auto why = std::make_shared<const Failure>(std::move(failure));
  for (const auto& exchange : active()) {
    exchange->shared_operation()->waits_for(exchange->missing());
    exchange->stop();
    failing_.push_back(exchange);
  }
  for (auto& of_channel : active_) of_channel.clear();
  wire_.cancel_receives(this);  // of a drain
  inquest_.reset();
  end_failing_at_ = Clock::now() + kCancelling;
  std::vector<std::shared_ptr<Operation>> unstarted;
  for (auto& waiting : waiting_turn_) {
    for (const auto& [sequence, operation] : waiting) unstarted.push_back(operation);
    waiting.clear();
  }
  {
    const core::MutexLock lock(mutex_);
    failure_ = why;
    changed_.notify_all();
  }
  end_queued(why);
  for (const auto& operation : unstarted) operation->fail(why, Operation::Unless::ended);
  if (tell == Tell::members) {
    PacketWriter out(SignalKind::abort, group_.id, now_epoch_);
    write(out, *why);
    out.ranks(dead);
    signal_all(out.take());
  }
}

void Context::end_failed(Clock::time_point now) {
  if (failing_.empty()) return;
  const Cause why = cause();
  for (std::size_t i = 0; i < failing_.size();) {
    Exchange& exchange = *failing_[i];
    if (exchange.outstanding_receives() > 0 && now < end_failing_at_) {
      ++i;
      continue;
    }
    // Requests that are still out hold the exchange, and with it the memory.
    exchange.shared_operation()->fail(why, Operation::Unless::ended, exchange.outstanding() > 0 ? &exchange.owners() : nullptr);
    failing_.erase(failing_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Context::abort(const std::string& cause) {
  Failure failure;
  failure.culprits = {group_.rank};
  failure.message = fmt::format("rank {} aborted the communicator: {}", group_.rank.value, cause);
  if (const Operation* operation = first_active()) {
    failure.verb = name_of(operation->verb);
    failure.unit = recorder_->unit_name(operation->label.unit);
  }
  fail(std::move(failure), Tell::members);
}

void Context::process_died(Rank world_rank) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (group_.world_ranks[r] != world_rank || failed_) continue;
    Failure failure;
    failure.culprits = {Rank(static_cast<int>(r))};
    if (const Operation* operation = first_active()) {
      failure.verb = name_of(operation->verb);
      failure.unit = recorder_->unit_name(operation->label.unit);
    }
    failure.message = fmt::format("rank {} on {} did not answer: dead, stopped or cut off from the network", r, group_.hosts[r]);
    fail(std::move(failure), Tell::members, {world_rank});
  }
}

void Context::process_left(Rank world_rank) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (group_.world_ranks[r] != world_rank) continue;
    peers_[r].gone = true;
    if (inquest_) inquest_->answers[r] = Answer{};
  }
}

bool Context::busy() const {
  if (!failing_.empty() || inquest_ || (stopping_ && !stopped_ && !failed_) || (resume_wanted_ && !failed_)) return true;
  return first_active() != nullptr;
}

bool Context::removable() const { return closed_ && !busy() && idle(); }

bool Context::idle() const {
  const core::MutexLock lock(mutex_);
  return operations_.empty();
}

}  // namespace tessera::comm::mpi
