#include "comm/thread/hub.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/planted_fault.h"
#include "tessera/error.h"

namespace tessera::comm {

namespace {

using Clock = std::chrono::steady_clock;

// An operation that its own stream has held up beyond its deadline still gives the peers a moment.
constexpr std::chrono::milliseconds kGrace{100};

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Hub::Hub(int ranks) : members_(static_cast<std::size_t>(ranks)) {}

void Hub::join(Rank rank, std::shared_ptr<FlightRecorder> recorder) {
  const core::MutexLock lock(mutex_);
  member(rank).recorder = std::move(recorder);
}

void Hub::submit(Rank rank, const std::shared_ptr<Operation>& operation) {
  Cause why;
  {
    const core::MutexLock lock(mutex_);
    why = cause();
    if (why == nullptr) member(rank).operations.insert(operation);
  }
  if (why != nullptr) operation->fail(why, Operation::Unless::running);
}

bool Hub::begin(const std::shared_ptr<Operation>& operation) {
  const core::MutexLock lock(mutex_);
  // What has failed is ended by whoever made it fail.
  return cause() == nullptr && operation->begin();
}

void Hub::forget(Rank rank, const std::shared_ptr<Operation>& operation) {
  const core::MutexLock lock(mutex_);
  Member& m = member(rank);
  m.operations.erase(operation);
  m.turn[static_cast<std::size_t>(operation->label.channel)] = {operation->sequence + 1, false};
  changed_.notify_all();
}

Cause Hub::arrive(Rank rank, const std::shared_ptr<Operation>& operation, std::shared_ptr<Meeting>& meeting) {
  const auto channel = static_cast<std::size_t>(operation->label.channel);
  Unended unended;
  core::MutexLock lock(mutex_);
  Member& self = member(rank);
  // The operations of a channel run in the order of the calls, also where they were submitted to different streams.
  while (cause() == nullptr && self.turn[channel].sequence != operation->sequence) {
    if (self.turn[channel].taken) changed_.wait(mutex_);
    else if (Clock::now() >= operation->deadline) unended = fail(out_of_turn(rank, *operation));
    else changed_.wait_until(mutex_, operation->deadline);
  }
  if (const Cause why = cause()) {
    lock.unlock();
    end(unended);
    return why;
  }

  self.turn[channel].taken = true;

  std::shared_ptr<Meeting>& entry = meetings_[{operation->label.channel, operation->sequence}];
  if (entry == nullptr) entry = std::make_shared<Meeting>(members_.size());
  meeting = entry;
  if (auto found = disagreement(rank, *operation, *meeting)) unended = fail(std::move(*found));
  meeting->came[static_cast<std::size_t>(rank.value)] = operation;
  if (++meeting->arrivals == members_.size()) meeting->changed.notify_all();

  const Clock::time_point deadline = std::max(operation->deadline, Clock::now() + kGrace);
  while (cause() == nullptr && meeting->arrivals < members_.size()) {
    std::vector<Rank> absent = missing(*meeting);
    if (auto left = departure(rank, *operation, *meeting)) {
      operation->waits_for(std::move(absent));
      unended = fail(std::move(*left));
    } else if (core::planted(core::Fault::dropped_deadline)) {
      meeting->changed.wait(mutex_);
    } else if (Clock::now() >= deadline) {
      operation->waits_for(absent);
      unended = fail(lateness(rank, *operation, absent));
    } else {
      operation->waits_for(std::move(absent));
      meeting->changed.wait_until(mutex_, deadline);
    }
  }
  // An interrupt stops what some rank has not come to; what all have come to ends as it would have.
  const Cause why = meeting->arrivals == members_.size() ? failure_ : cause();
  if (why == nullptr) ++meeting->moving;
  // Others may be in the middle of this meeting and reading this rank's memory, which goes with the operation.
  while (why != nullptr && meeting->moving > 0) meeting->changed.wait(mutex_);
  operation->waits_for(missing(*meeting));
  lock.unlock();
  end(unended);
  return why;
}

Cause Hub::depart(Rank rank, const std::shared_ptr<Operation>& operation, Meeting& meeting, Moved moved) {
  Unended unended;
  core::MutexLock lock(mutex_);
  meeting.departed[static_cast<std::size_t>(rank.value)] = true;
  if (moved == Moved::in_part) meeting.cut_short = true;
  --meeting.moving;
  ++meeting.departures;
  meeting.changed.notify_all();
  const Clock::time_point deadline = std::max(operation->deadline, Clock::now() + kGrace);
  while (failure_ == nullptr && meeting.departures < members_.size()) {
    std::vector<Rank> moving;
    for (std::size_t r = 0; r < members_.size(); ++r)
      if (!meeting.departed[r]) moving.emplace_back(static_cast<int>(r));
    operation->waits_for(moving);
    if (Clock::now() >= deadline) unended = fail(slowness(rank, *operation, moving));
    else meeting.changed.wait_until(mutex_, deadline);
  }
  const Cause why = meeting.departures == members_.size() && !meeting.cut_short ? nullptr : failure_;
  while (why != nullptr && meeting.moving > 0) meeting.changed.wait(mutex_);
  if (why == nullptr) {
    operation->waits_for({});
    meetings_.erase({operation->label.channel, operation->sequence});
  }
  lock.unlock();
  end(unended);
  return why;
}

void Hub::fail_to_move(Rank rank, const Operation& operation, const std::string& why) {
  Unended unended;
  {
    const core::MutexLock lock(mutex_);
    Failure failure;
    failure.culprits = {rank};
    failure.verb = name_of(operation.verb);
    failure.unit = member(rank).recorder->unit_name(operation.label.unit);
    failure.message = fmt::format("rank {} could not move its data in {}: {}", rank.value, described(rank, operation), why);
    unended = fail(std::move(failure));
  }
  end(unended);
}

Cause Hub::failure() const {
  const core::MutexLock lock(mutex_);
  return failure_;
}

void Hub::interrupt(Rank rank, const std::string& why) {
  Unended unended;
  {
    const core::MutexLock lock(mutex_);
    if (cause() != nullptr) return;
    unended = fail(interruption(rank, why));
  }
  end(unended);
}

bool Hub::interrupted() const {
  const core::MutexLock lock(mutex_);
  return interruption_ != nullptr;
}

void Hub::resume(Rank rank) {
  Unended unended;
  Cause why;
  {
    const core::MutexLock lock(mutex_);
    Member& self = member(rank);
    const auto deadline = Clock::now() + self.recorder->deadline();
    while (failure_ == nullptr && !self.operations.empty()) {
      if (Clock::now() >= deadline) unended = fail(held_up(rank));
      else changed_.wait_until(mutex_, deadline);
    }
    const std::int64_t epoch = epoch_;
    self.resuming = true;
    if (failure_ == nullptr && ++resuming_ == members_.size()) {
      ++epoch_;
      resuming_ = 0;
      interruption_ = nullptr;
      meetings_.clear();
      children_.clear();
      for (Member& m : members_) {
        m.resuming = false;
        m.turn = {};
      }
      changed_.notify_all();
    }
    while (failure_ == nullptr && epoch_ == epoch) {
      std::vector<Rank> absent, gone;
      for (std::size_t r = 0; r < members_.size(); ++r) {
        if (members_[r].resuming) continue;
        absent.emplace_back(static_cast<int>(r));
        if (members_[r].left) gone.emplace_back(static_cast<int>(r));
      }
      Failure failure;
      failure.verb = "resume";
      if (!gone.empty()) {
        failure.culprits = gone;
        failure.message = fmt::format("{} left while rank {} waits to resume the step", list_ranks(gone), rank.value);
        unended = fail(std::move(failure));
      } else if (Clock::now() >= deadline) {
        failure.culprits = absent;
        failure.message = fmt::format("{} did not resume the step within {:.3f} s of rank {}", list_ranks(absent),
                                      seconds(self.recorder->deadline()), rank.value);
        unended = fail(std::move(failure));
      } else {
        changed_.wait_until(mutex_, deadline);
      }
    }
    if (epoch_ == epoch) why = failure_;
    else self.recorder->restart();
  }
  end(unended);
  if (why != nullptr) {
    std::string dump;
    {
      const core::MutexLock lock(mutex_);
      dump = member(rank).recorder->dump();
    }
    raise(*why, {}, dump);
  }
}

void Hub::leave(Rank rank, const std::array<std::int64_t, kChannels>& counts) {
  const core::MutexLock lock(mutex_);
  if (member(rank).left) return;
  member(rank).left = counts;
  wake_all();
}

void Hub::abort(Rank rank, const std::string& why) {
  Unended unended;
  {
    const core::MutexLock lock(mutex_);
    if (failure_ != nullptr || member(rank).left) return;
    Failure failure;
    failure.culprits = {rank};
    failure.message = fmt::format("rank {} aborted the communicator: {}", rank.value, why);
    if (const Operation* operation = waiting(rank)) {
      failure.verb = name_of(operation->verb);
      failure.unit = member(rank).recorder->unit_name(operation->label.unit);
    }
    unended = fail(std::move(failure));
  }
  end(unended);
}

std::shared_ptr<Hub> Hub::child(std::int64_t sequence, int color, int ranks) {
  const core::MutexLock lock(mutex_);
  const std::pair<std::int64_t, int> key{sequence, color};
  Child& entry = children_[key];
  if (entry.hub == nullptr) entry.hub = std::make_shared<Hub>(ranks);
  std::shared_ptr<Hub> hub = entry.hub;
  if (++entry.asked == ranks) children_.erase(key);
  return hub;
}

std::string Hub::described(Rank rank, const Operation& operation) {
  return describe(operation, member(rank).recorder->unit_name(operation.label.unit));
}

std::vector<Rank> Hub::missing(const Meeting& meeting) const {
  std::vector<Rank> out;
  for (std::size_t r = 0; r < members_.size(); ++r)
    if (meeting.came[r] == nullptr) out.emplace_back(static_cast<int>(r));
  return out;
}

const Operation* Hub::waiting(Rank rank) const {
  for (const auto& [key, meeting] : meetings_) {
    const auto& operation = meeting->came[static_cast<std::size_t>(rank.value)];
    if (operation != nullptr && meeting->arrivals < members_.size()) return operation.get();
  }
  return nullptr;
}

// Follows who waits for whom from the missing ranks to those that wait for nobody.
std::vector<Rank> Hub::culprits(const std::vector<Rank>& absent) const {
  std::vector<Rank> reached = absent, roots;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const Rank rank = reached[i];
    bool waits = false;
    for (const auto& [key, meeting] : meetings_) {
      if (meeting->came[static_cast<std::size_t>(rank.value)] == nullptr || meeting->arrivals == members_.size()) continue;
      waits = true;
      for (const Rank next : missing(*meeting))
        if (std::find(reached.begin(), reached.end(), next) == reached.end()) reached.push_back(next);
    }
    if (!waits) roots.push_back(rank);
  }
  std::sort(roots.begin(), roots.end());
  return roots.empty() ? absent : roots;
}

void Hub::wake_all() {
  changed_.notify_all();
  for (const auto& [key, meeting] : meetings_) meeting->changed.notify_all();
}

Hub::Unended Hub::fail(Failure failure) {
  Unended out;
  if (failure_ != nullptr) return out;
  const bool final_failure = failure.kind == FailureKind::failed;
  auto why = std::make_shared<const Failure>(std::move(failure));
  (final_failure ? failure_ : interruption_) = why;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    for (const auto& operation : members_[r].operations) out.push_back({why, Rank(static_cast<int>(r)), operation});
  }
  wake_all();
  return out;
}

void Hub::end(const Unended& operations) {
  for (const Doomed& d : operations) {
    if (!d.operation->fail(d.why, Operation::Unless::running)) continue;
    const core::MutexLock lock(mutex_);
    member(d.rank).operations.erase(d.operation);
    changed_.notify_all();
  }
}

std::optional<Failure> Hub::disagreement(Rank rank, const Operation& operation, const Meeting& meeting) {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const auto& other = meeting.came[r];
    if (other == nullptr || other->matches(operation)) continue;
    const Rank peer(static_cast<int>(r));
    const bool peer_first = peer < rank;
    const Rank low = peer_first ? peer : rank, high = peer_first ? rank : peer;
    const Operation& first = peer_first ? *other : operation;
    const Operation& second = peer_first ? operation : *other;
    Failure failure;
    failure.culprits = {low, high};
    failure.verb = name_of(first.verb);
    failure.unit = member(low).recorder->unit_name(first.label.unit);
    failure.message = disagreement_message(low, described(low, first), high, described(high, second));
    return failure;
  }
  return std::nullopt;
}

std::optional<Failure> Hub::departure(Rank rank, const Operation& operation, const Meeting& meeting) {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (meeting.came[r] != nullptr || !members_[r].left) continue;
    const std::int64_t calls = (*members_[r].left)[static_cast<std::size_t>(operation.label.channel)];
    if (operation.sequence < calls) continue;
    Failure failure;
    failure.culprits = {Rank(static_cast<int>(r))};
    failure.verb = name_of(operation.verb);
    failure.unit = member(rank).recorder->unit_name(operation.label.unit);
    failure.message = departure_message(failure.culprits[0], calls, operation.label.channel, rank, described(rank, operation));
    return failure;
  }
  return std::nullopt;
}

Failure Hub::held_up(Rank rank) {
  Failure failure;
  failure.culprits = {rank};
  failure.verb = "resume";
  failure.message = held_up_message(rank, member(rank).recorder->deadline());
  return failure;
}

Failure Hub::out_of_turn(Rank rank, const Operation& operation) {
  Failure failure;
  failure.culprits = {rank};
  failure.verb = name_of(operation.verb);
  failure.unit = member(rank).recorder->unit_name(operation.label.unit);
  failure.message = out_of_turn_message(rank, described(rank, operation), operation);
  return failure;
}

Failure Hub::slowness(Rank rank, const Operation& operation, const std::vector<Rank>& moving) {
  Failure failure;
  failure.culprits = moving;
  failure.verb = name_of(operation.verb);
  failure.unit = member(rank).recorder->unit_name(operation.label.unit);
  failure.message =
      fmt::format("{} came to {} but did not move its data within {:.3f} s of rank {}: stopped, or set a longer deadline",
                  list_ranks(moving), described(rank, operation), seconds(operation.deadline - operation.submitted), rank.value);
  return failure;
}

Failure Hub::lateness(Rank rank, const Operation& operation, const std::vector<Rank>& absent) {
  Failure failure;
  failure.culprits = culprits(absent);
  failure.verb = name_of(operation.verb);
  failure.unit = member(rank).recorder->unit_name(operation.label.unit);
  failure.message = fmt::format("{} did not come to {} within {:.3f} s of rank {}", list_ranks(absent), described(rank, operation),
                                seconds(operation.deadline - operation.submitted), rank.value);
  for (const Rank peer : absent)
    if (const Operation* other = waiting(peer)) failure.message += fmt::format("; rank {} is in {}", peer.value, described(peer, *other));
  failure.message += fmt::format("; {} waits for nobody: see what it does, or set a longer deadline", list_ranks(failure.culprits));
  return failure;
}

}  // namespace tessera::comm
