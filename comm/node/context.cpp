#include "comm/node/context.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "comm/delay.h"
#include "core/planted_fault.h"
#include "tessera/error.h"

namespace tessera::comm::node {

namespace {

// An operation that its own stream has held up beyond its deadline still gives the peers a moment.
constexpr std::chrono::milliseconds kGrace{100};
// How often the watcher looks whether the peers live.
constexpr std::chrono::milliseconds kHeartbeat{100};

int open_process(std::uint32_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace

Context::Context(Segment segment, const SegmentLayout& layout, Rank rank, const TransportOptions& options,
                 std::shared_ptr<FlightRecorder> recorder)
    : segment_(std::move(segment)),
      layout_(layout),
      rank_(rank),
      options_(options),
      recorder_(std::move(recorder)),
      words_(segment_.data()),
      gate_(words_, layout.ranks, rank.value),
      own_(layout.own_bytes),
      flats_(layout.flats_bytes) {}

Context::~Context() {
  stop_ = true;
  Platform::add(own_words().alarm, 1);
  Platform::wake(own_words().alarm);
  if (watcher_.joinable()) watcher_.join();
  for (const int fd : peers_)
    if (fd >= 0) close(fd);
}

void Context::meet() {
  Platform::store(own_words().pid, static_cast<std::uint32_t>(getpid()));
  gate_.ring();
  const auto deadline = Clock::now() + options_.deadline;
  std::vector<Rank> absent;
  gate_.await(
      [&] {
        absent.clear();
        for (int r = 0; r < size(); ++r)
          if (Platform::load(words_(r).pid) == 0) absent.emplace_back(r);
        return absent.empty() || Clock::now() >= deadline;
      },
      deadline);
  if (!absent.empty())
    throw CommFailure(fmt::format("{} did not join the node's shared memory within {:.3f} s of rank {}", list_ranks(absent),
                                  seconds(options_.deadline), rank_.value),
                      absent, "join", {}, {});
  for (int r = 0; r < size(); ++r) peers_.push_back(r == rank_.value ? -1 : open_process(Platform::load(words_(r).pid)));
  watcher_ = std::thread([this] { watch(); });
}

// --- causes -----------------------------------------------------------------------------------------------------------

Cause Context::cause() const {
  const std::uint64_t word = Platform::load(words_.state());
  const State now = State::of(word);
  if (now.kind == State::Kind::running) return nullptr;
  const core::MutexLock lock(mutex_);
  if (known_cause_ == nullptr || known_ != word) {
    const RankWords& whose = words_(now.rank);
    known_cause_ = std::make_shared<const Failure>(failure_of(now.kind == State::Kind::failed ? whose.failed : whose.interrupted));
    known_ = word;
  }
  return known_cause_;
}

Cause Context::failure() const { return state().kind == State::Kind::failed ? cause() : nullptr; }

void Context::fail(const Failure& failure) {
  const bool final_failure = failure.kind == FailureKind::failed;
  {
    const core::MutexLock lock(mutex_);
    for (;;) {
      const std::uint64_t word = Platform::load(words_.state());
      State next = State::of(word);
      if (next.kind == State::Kind::failed || (!final_failure && next.kind == State::Kind::interrupted)) return;
      // The record is written before the word that publishes it, and a final one only once.
      if (final_failure && !std::exchange(recorded_failure_, true)) own_words().failed = record_of(failure);
      if (!final_failure) own_words().interrupted = record_of(failure);
      next.kind = final_failure ? State::Kind::failed : State::Kind::interrupted;
      next.rank = rank_.value;
      if (Platform::compare_exchange(words_.state(), word, next.word())) break;
    }
  }
  gate_.close();
  ring_alarms();
  end_queued();
}

void Context::ring_alarms() {
  for (int r = 0; r < size(); ++r) {
    Platform::add(words_(r).alarm, 1);
    Platform::wake(words_(r).alarm);
  }
}

void Context::end_queued() {
  // The operations first, then the cause: a cause that was read before all have resumed must not end what was submitted after.
  std::vector<std::shared_ptr<Operation>> all;
  {
    const core::MutexLock lock(mutex_);
    all.assign(operations_.begin(), operations_.end());
  }
  const Cause why = cause();
  if (why == nullptr) return;
  for (const auto& operation : all) {
    if (operation->fail(why, Operation::Unless::running)) forget(operation);
  }
  const core::MutexLock lock(mutex_);
  changed_.notify_all();  // those that wait for their turn
}

void Context::watch() {
  RankWords& words = own_words();
  for (;;) {
    const std::uint32_t seen = Platform::load(words.alarm);
    if (stop_) return;
    end_queued();
    look_for_deaths();
    Platform::sleep(words.alarm, seen, Clock::now() + kHeartbeat);
  }
}

void Context::look_for_deaths() {
  if (state().kind == State::Kind::failed) return;
  for (int r = 0; r < size(); ++r) {
    const int fd = peers_[static_cast<std::size_t>(r)];
    if (fd < 0) continue;
    pollfd ended{fd, POLLIN, 0};
    if (poll(&ended, 1, 0) <= 0 || Platform::load(words_(r).left) != 0) continue;
    Failure failure;
    failure.culprits = {Rank(r)};
    std::string in;
    {
      const core::MutexLock lock(mutex_);
      for (const auto& operation : operations_) {
        if (!in.empty() && operation->label.unit == kNoUnit) continue;
        failure.verb = name_of(operation->verb);
        failure.unit = recorder_->unit_name(operation->label.unit);
        in = fmt::format("; rank {} is in {}", rank_.value, described(*operation));
      }
    }
    failure.message = fmt::format("rank {} died (process {}){}", r, Platform::load(words_(r).pid), in);
    fail(failure);
    return;
  }
}

// --- operations -------------------------------------------------------------------------------------------------------

void Context::submit(const std::shared_ptr<Operation>& operation) {
  if (const Cause why = cause()) {
    operation->fail(why, Operation::Unless::running);
    return;
  }
  const core::MutexLock lock(mutex_);
  operations_.insert(operation);
}

void Context::carry_out(const std::shared_ptr<Operation>& operation) {
  if (const Cause why = cause()) {
    // Whoever ends it forgets it, when it is over: resume() waits for that.
    if (operation->fail(why, Operation::Unless::running)) forget(operation);
    return;
  }
  if (!operation->begin()) return;  // it failed while it was queued, in an epoch that may be over
  pause(*operation, 0);
  Cause why;
  try {
    why = perform(operation);
  } catch (const std::exception& e) {  // nobody above: this is a worker thread
    Failure failed = failure_in(*operation);
    failed.culprits = {rank_};
    failed.message = fmt::format("rank {} could not move its data in {}: {}", rank_.value, described(*operation), e.what());
    fail(failed);
    why = cause();
  }
  if (why == nullptr) {
    traffic_.add(traffic_of(*operation, rank_, size()));
    operation->finish();
  } else {
    operation->fail(why, Operation::Unless::ended);
  }
  {
    const core::MutexLock lock(mutex_);
    turn_[index_of(operation->label.channel)] = {operation->sequence + 1, false};
  }
  forget(operation);
}

void Context::forget(const std::shared_ptr<Operation>& operation) {
  const core::MutexLock lock(mutex_);
  operations_.erase(operation);
  changed_.notify_all();
}

void Context::pause(const Operation& operation, int phase) const {
  const auto delay = delay_of(operation, rank_, phase, options_.random_delay);
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

Cause Context::perform(const std::shared_ptr<Operation>& operation) {
  const std::size_t channel = index_of(operation->label.channel);
  if (Cause why = wait_turn(operation)) return why;
  Move move(*operation, rank_, layout_, segment_.data(), options_.chunk);
  own_words().headers[channel][operation->sequence % 2] = {*operation, move.source()};
  move.stage(0, static_cast<int>(meetings_[channel] % 2));
  if (!gate_.begin(channel, static_cast<std::uint64_t>(operation->sequence))) return cause();
  if (Cause why = wait_for_all(*operation)) return why;

  std::vector<std::int64_t> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(words_(r).headers[channel][operation->sequence % 2].source);
  move.meet(sources);
  pause(*operation, 1);
  const auto stop = [this] { return state().kind == State::Kind::failed; };
  for (std::int64_t round = 0; round < move.rounds(); ++round) {
    if (round > 0) {
      move.stage(round, static_cast<int>(meetings_[channel] % 2));
      if (Cause why = pass_round(*operation)) return why;
    }
    move.read(round, static_cast<int>((meetings_[channel] - 1) % 2), stop);
  }
  pause(*operation, 2);
  if (move.direct())
    if (Cause why = pass_round(*operation)) return why;
  operation->waits_for({});
  return failure();
}

Cause Context::wait_turn(const std::shared_ptr<Operation>& operation) {
  const std::size_t channel = index_of(operation->label.channel);
  bool late = false;
  for (;;) {
    if (Cause why = cause()) return why;
    if (late) {
      fail(out_of_turn(*operation));
      return cause();
    }
    const core::MutexLock lock(mutex_);
    Turn& turn = turn_[channel];
    if (turn.sequence == operation->sequence) {
      turn.taken = true;
      return nullptr;
    }
    if (turn.taken) changed_.wait(mutex_);
    else late = !changed_.wait_until(mutex_, operation->deadline) && turn.sequence != operation->sequence && !turn.taken;
  }
}

Cause Context::wait_for_all(Operation& operation) {
  const std::size_t channel = index_of(operation.label.channel);
  const auto n = static_cast<std::uint64_t>(operation.sequence);
  const auto deadline =
      core::planted(core::Fault::dropped_deadline) ? Clock::time_point::max() : std::max(operation.deadline, Clock::now() + kGrace);
  std::vector<bool> compared(static_cast<std::size_t>(size()));
  Cause why;
  gate_.await(
      [&] {
        std::vector<Rank> absent;
        for (int r = 0; r < size(); ++r) {
          if (gate_.begun(r, channel) <= n) {
            absent.emplace_back(r);
          } else if (!compared[static_cast<std::size_t>(r)]) {
            compared[static_cast<std::size_t>(r)] = true;
            if (const auto found = disagreement(operation, Rank(r))) fail(*found);
          }
        }
        if ((why = failure()) != nullptr) return true;
        if (state().kind == State::Kind::interrupted) {
          gate_.close();  // whoever interrupted may not have done so yet; then the counts are final
          if (!gate_.all_have_begun(channel, n)) why = cause();
          return true;
        }
        if (absent.empty()) return true;
        if (const auto left = departure(operation, absent)) fail(*left);
        else if (Clock::now() >= deadline) fail(lateness_of_earliest(operation, absent));
        operation.waits_for(std::move(absent));
        return (why = failure()) != nullptr;
      },
      std::min(deadline, Clock::now() + std::chrono::hours(1)));
  if (why == nullptr) {
    ++meetings_[channel];
    operation.waits_for({});
  }
  return why;
}

// All have begun this operation, so all go through its rounds, also after an interrupt.
Cause Context::pass_round(Operation& operation) {
  const std::size_t channel = index_of(operation.label.channel);
  gate_.pass(channel, ++rounds_[channel]);
  const auto deadline = std::max(operation.deadline, Clock::now() + kGrace);
  Cause why;
  gate_.await(
      [&] {
        if ((why = failure()) != nullptr || gate_.all_have_passed(channel, rounds_[channel])) return true;
        if (Clock::now() < deadline) return false;
        std::vector<Rank> moving;
        for (int r = 0; r < size(); ++r)
          if (gate_.passed(r, channel) < rounds_[channel]) moving.emplace_back(r);
        operation.waits_for(moving);
        fail(slowness(operation, moving));
        return (why = failure()) != nullptr;
      },
      deadline);
  ++meetings_[channel];
  return why;
}

// --- interrupts and ends ----------------------------------------------------------------------------------------------

void Context::interrupt(const std::string& why) { fail(interruption(rank_, why)); }

bool Context::interrupted() const { return state().kind == State::Kind::interrupted; }

void Context::resume() {
  const auto deadline = Clock::now() + recorder_->deadline();
  bool held_up = false;
  {
    const core::MutexLock lock(mutex_);
    while (!operations_.empty() && state().kind != State::Kind::failed && !held_up)
      held_up = !changed_.wait_until(mutex_, std::min(deadline, Clock::now() + kHeartbeat)) && Clock::now() >= deadline;
    held_up = held_up && !operations_.empty();
  }
  Failure failed;
  failed.verb = "resume";
  if (held_up) {
    failed.culprits = {rank_};
    failed.message = held_up_message(rank_, recorder_->deadline());
    fail(failed);
  }
  const std::uint32_t epoch = state().epoch;
  const std::uint64_t next = std::uint64_t{epoch} + 1;
  Platform::store(own_words().resumed, next);
  gate_.ring();
  gate_.await(
      [&] {
        const State now = state();
        if (now.kind == State::Kind::failed || now.epoch != epoch) return true;
        std::vector<Rank> absent, gone;
        for (int r = 0; r < size(); ++r) {
          if (Platform::load(words_(r).resumed) >= next) continue;
          absent.emplace_back(r);
          if (Platform::load(words_(r).left) != 0) gone.emplace_back(r);
        }
        if (absent.empty() && rank_ == Rank(0)) {
          // All others wait here: nobody touches a counter.
          gate_.reopen();
          if (Platform::compare_exchange(words_.state(), now.word(), State{State::Kind::running, 0, epoch + 1}.word())) gate_.ring();
          return true;
        }
        if (!gone.empty()) {
          failed.culprits = gone;
          failed.message = fmt::format("{} left while rank {} waits to resume the step", list_ranks(gone), rank_.value);
          fail(failed);
        } else if (Clock::now() >= deadline) {
          failed.culprits = absent;
          failed.message = fmt::format("{} did not resume the step within {:.3f} s of rank {}", list_ranks(absent),
                                       seconds(recorder_->deadline()), rank_.value);
          fail(failed);
        }
        return false;
      },
      deadline);
  if (const Cause why = failure()) raise(*why, {}, recorder_->dump());
  const core::MutexLock lock(mutex_);
  turn_ = {};
  meetings_ = {};
  rounds_ = {};
  recorder_->restart();
}

void Context::leave(const std::array<std::int64_t, kChannels>& counts) {
  RankWords& words = own_words();
  if (Platform::load(words.left) != 0) return;
  words.left_after = counts;
  Platform::store(words.left, std::uint32_t{1});
  gate_.ring();
}

void Context::abort(const std::string& why) {
  if (Platform::load(own_words().left) != 0) return;
  Failure failure;
  failure.culprits = {rank_};
  failure.message = fmt::format("rank {} aborted the communicator: {}", rank_.value, why);
  {
    const core::MutexLock lock(mutex_);
    for (const auto& operation : operations_) {
      if (operation->over()) continue;
      failure.verb = name_of(operation->verb);
      failure.unit = recorder_->unit_name(operation->label.unit);
      break;
    }
  }
  fail(failure);
}

}  // namespace tessera::comm::node
