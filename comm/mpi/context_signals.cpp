// What peers say, the change of epochs, and deadlines.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/mpi/context.h"
#include "core/planted_fault.h"

namespace tessera::comm::mpi {

void Context::signal(Rank to, const Packet& packet) {
  control_sent_ += static_cast<std::int64_t>(packet.size());
  wire_.signal(group_.world_ranks[static_cast<std::size_t>(to.value)], packet);
}

void Context::signal_all(const Packet& packet) {
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (!is_self(r) && !peers_[r].gone) signal(Rank(static_cast<int>(r)), packet);
}

void Context::take(Rank world_source, const SignalHead& head, const std::byte* data, std::size_t size) {
  control_received_ += static_cast<std::int64_t>(size);
  const auto at = std::find(group_.world_ranks.begin(), group_.world_ranks.end(), world_source);
  if (at == group_.world_ranks.end()) return;
  const Rank from(static_cast<int>(at - group_.world_ranks.begin()));
  const bool of_epoch = head.kind == SignalKind::header || head.kind == SignalKind::interrupt || head.kind == SignalKind::settle ||
                        head.kind == SignalKind::resume || head.kind == SignalKind::leave;
  if (of_epoch && head.epoch > now_epoch_) {
    next_epoch_.push_back({world_source, Packet(data, data + size)});
    return;
  }
  if (of_epoch && head.epoch < now_epoch_) return;
  PacketReader in(data, size);
  if (head.kind == SignalKind::header) {
    take_header(from, in.value<WireHeader>());
    return;
  }
  in.value<SignalKind>();
  in.value<std::int32_t>();
  in.value<std::int32_t>();
  switch (head.kind) {
    case SignalKind::interrupt: take_interrupt(from, in); break;
    case SignalKind::settle: take_settle(from, in); break;
    case SignalKind::resume: peer(from).resumed = true; break;
    case SignalKind::leave: take_leave(from, in); break;
    case SignalKind::abort: take_abort(in); break;
    case SignalKind::ping: answer_ping(from, in.value<std::int32_t>()); break;
    case SignalKind::pong: {
      const auto number = in.value<std::int32_t>();
      if (!inquest_ || inquest_->number != number) break;
      Answer answer;
      answer.waits_for = in.ranks();
      std::erase_if(answer.waits_for, [&](Rank r) { return r.value < 0 || r.value >= this->size(); });
      answer.what = in.text();
      inquest_->answers[static_cast<std::size_t>(from.value)] = std::move(answer);
      break;
    }
    case SignalKind::gone:
      peer(from).gone = true;
      if (inquest_) inquest_->answers[static_cast<std::size_t>(from.value)] = Answer{};
      break;
    case SignalKind::header:
    case SignalKind::goodbye: break;
  }
}

void Context::take_header(Rank from, const WireHeader& header) {
  if (failed_ || static_cast<int>(header.channel()) >= kChannels) return;
  const auto channel = static_cast<std::size_t>(header.channel());
  for (const std::shared_ptr<Exchange>& exchange : active_[channel]) {
    if (header.sequence > exchange->operation().sequence) continue;
    if (!exchange->stopped()) accept(from, header, *exchange);
    return;
  }
  peer(from).early[channel].push_back(header);
}

void Context::take_interrupt(Rank from, PacketReader& in) {
  Failure failure = read_failure(in);
  peer(from).begun = in.value<OperationCounts>();
  if (failed_) return;
  Cause why;
  {
    const core::MutexLock lock(mutex_);
    if (interruption_ == nullptr) why = interruption_ = std::make_shared<const Failure>(std::move(failure));
  }
  if (why != nullptr) end_queued(why);
  stop();
}

void Context::take_settle(Rank from, PacketReader& in) { peer(from).announced = in.value<MessageCounts>(); }

void Context::take_leave(Rank from, PacketReader& in) {
  peer(from).left = in.value<OperationCounts>();
  for (const auto& exchange : active())
    if (!failed_ && !stopping_ && !check_left(*exchange)) return;
}

void Context::take_abort(PacketReader& in) {
  Failure failure = read_failure(in);
  const std::vector<Rank> dead = in.ranks();
  fail(std::move(failure), Tell::nobody);
  for (const Rank world_rank : dead) found_dead_(world_rank);
}

void Context::answer_ping(Rank from, std::int32_t number) {
  std::vector<Rank> all;
  std::string what;
  for (const Wait& wait : waits()) {
    for (const Rank r : wait.missing)
      if (std::find(all.begin(), all.end(), r) == all.end()) all.push_back(r);
    what += (what.empty() ? "" : " and ") + wait.what;
  }
  PacketWriter out(SignalKind::pong, group_.id, now_epoch_);
  out.value(number).ranks(all).text(what);
  signal(from, out.take());
}

void Context::leave(const OperationCounts& counts) {
  PacketWriter out(SignalKind::leave, group_.id, now_epoch_);
  out.value(counts);
  signal_all(out.take());
}

void Context::stop() {
  if (stopping_ || failed_) return;
  stopping_ = true;
  settled_ = stopped_ = false;
  stopping_since_ = Clock::now();
  const Cause why = cause();
  for (auto& waiting : waiting_turn_) {
    for (const auto& [sequence, operation] : waiting) operation->fail(why, Operation::Unless::ended);
    waiting.clear();
  }
  PacketWriter out(SignalKind::interrupt, group_.id, now_epoch_);
  write(out, *why);
  out.value(begun_);
  signal_all(out.take());
}

bool Context::all_have_begun(const Exchange& exchange) const {
  const Operation& operation = exchange.operation();
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (is_self(r) || exchange.has_come(Rank(static_cast<int>(r)))) continue;
    if (!peers_[r].begun || (*peers_[r].begun)[static_cast<std::size_t>(operation.label.channel)] <= operation.sequence) return false;
  }
  return true;
}

// Knows what becomes of the active operations once all peers have said what they have begun; tells the peers when those that go on are
// complete.
void Context::settle() {
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (!is_self(r) && !peers_[r].gone && !peers_[r].begun) return;
  bool all_over = true;
  for (const auto& exchange : active()) {
    if (all_have_begun(*exchange)) all_over = false;
    else exchange->stop();
  }
  if (!all_over) return;
  settled_ = true;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (is_self(r) || peers_[r].gone) continue;
    PacketWriter out(SignalKind::settle, group_.id, now_epoch_);
    out.value(peers_[r].sent);
    signal(Rank(static_cast<int>(r)), out.take());
  }
}

bool Context::drained() const {
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (!is_self(r) && !peers_[r].gone && (!peers_[r].announced || peers_[r].received != *peers_[r].announced)) return false;
  return true;
}

// Receives what peers had sent before they stopped, one message after the other, into the scratch, which nobody needs now.
void Context::drain() {
  if (draining_) return;
  for (const auto& exchange : active())
    if (exchange->outstanding_receives() > 0) return;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    Peer& from = peers_[r];
    if (is_self(r) || from.gone || !from.announced) continue;
    for (std::size_t i = 0; i < from.received.size(); ++i) {
      if (from.received[i] >= (*from.announced)[i]) continue;
      const auto channel = static_cast<Channel>(i / kStreams);
      const int stream = static_cast<int>(i % kStreams);
      draining_ = true;
      wire_.receive(group_.world_ranks[r], Wire::tag(group_.id, channel, stream), scratch_, layout_.total(), this,
                    [self = shared_from_this(), r, channel, stream](const Outcome& outcome) {
                      self->draining_ = false;
                      if (outcome.cancelled || outcome.error != MPI_SUCCESS) return;
                      self->received(Rank(static_cast<int>(r)), channel, stream, Bytes(outcome.bytes));
                    });
      return;
    }
  }
}

bool Context::quiet() const {
  if (stopping_) return stopped_;
  for (std::size_t c = 0; c < kChannels; ++c)
    if (!active_[c].empty() || !waiting_turn_[c].empty()) return false;
  return true;
}

void Context::ask_to_resume(Clock::time_point since) {
  resume_wanted_ = true;
  resume_wanted_since_ = since;
}

void Context::cannot_resume() {
  Failure failure;
  failure.culprits = {group_.rank};
  failure.verb = "resume";
  failure.message = held_up_message(group_.rank, recorder_->deadline());
  fail(std::move(failure), Tell::members);
}

void Context::poll_epoch() {
  if (failed_) return;
  if (stopping_ && !stopped_) {
    if (!settled_) settle();
    if (settled_) drain();
    std::size_t outstanding = 0;
    for (const auto& exchange : active()) outstanding += exchange->outstanding();
    if (settled_ && outstanding == 0 && drained()) {
      stopped_ = true;
      const Cause why = cause();
      for (const auto& exchange : active()) exchange->shared_operation()->fail(why, Operation::Unless::ended);
      for (auto& of_channel : active_) of_channel.clear();
    }
  }
  if (!resume_wanted_ || !quiet() || !idle()) return;
  if (!resume_sent_) {
    resume_sent_ = true;
    peer(group_.rank).resumed = true;
    signal_all(PacketWriter(SignalKind::resume, group_.id, now_epoch_).take());
  }
  std::vector<Rank> gone;
  bool all = true;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].resumed) continue;
    all = false;
    if (peers_[r].left || peers_[r].gone) gone.emplace_back(static_cast<int>(r));
  }
  if (all) {
    begin_epoch();
  } else if (!gone.empty()) {
    Failure failure;
    failure.culprits = gone;
    failure.verb = "resume";
    failure.message = fmt::format("{} left while rank {} waits to resume the step", list_ranks(gone), group_.rank.value);
    fail(std::move(failure), Tell::members);
  }
}

void Context::begin_epoch() {
  ++now_epoch_;
  stopping_ = settled_ = stopped_ = resume_wanted_ = resume_sent_ = false;
  inquest_.reset();
  begun_ = {};
  for (Peer& p : peers_) {
    p.early = {};
    p.sent = p.received = {};
    p.begun.reset();
    p.announced.reset();
    p.resumed = false;
  }
  recorder_->restart();
  {
    const core::MutexLock lock(mutex_);
    interruption_ = nullptr;
    epoch_ = now_epoch_;
    changed_.notify_all();
  }
  std::vector<Early> early;
  std::swap(early, next_epoch_);
  for (const Early& e : early) take(e.source, head_of(e.packet.data(), e.packet.size()), e.packet.data(), e.packet.size());
}

std::vector<Wait> Context::waits() const {
  std::vector<Wait> out;
  if (failed_) return out;
  const auto whole = recorder_->deadline();
  if (stopping_ && !stopped_) {
    Wait wait{"the end of the interrupted step", "interrupt", {}, {}, stopping_since_, stopping_since_ + whole};
    for (std::size_t r = 0; r < peers_.size(); ++r)
      if (!is_self(r) && !peers_[r].gone && (!peers_[r].announced || peers_[r].received != *peers_[r].announced))
        wait.missing.emplace_back(static_cast<int>(r));
    for (const auto& exchange : active()) {
      if (exchange->outstanding() == 0) continue;
      for (const Rank r : exchange->missing())
        if (std::find(wait.missing.begin(), wait.missing.end(), r) == wait.missing.end()) wait.missing.push_back(r);
    }
    out.push_back(std::move(wait));
  } else if (!stopping_) {
    for (const auto& exchange : active()) {
      const Operation& op = exchange->operation();
      out.push_back({described(op), std::string(name_of(op.verb)), recorder_->unit_name(op.label.unit), exchange->missing(), op.submitted,
                     op.deadline});
    }
  }
  if (resume_wanted_ && resume_sent_) {
    Wait wait{"resume the step", "resume", {}, {}, resume_wanted_since_, resume_wanted_since_ + whole};
    for (std::size_t r = 0; r < peers_.size(); ++r)
      if (!peers_[r].resumed) wait.missing.emplace_back(static_cast<int>(r));
    out.push_back(std::move(wait));
  }
  return out;
}

void Context::poll_deadlines(Clock::time_point now) {
  if (failed_ || core::planted(core::Fault::dropped_deadline)) return;
  if (inquest_) {
    if (now >= inquest_->judge_at) conclude_inquest(now);
    return;
  }
  if (!check_turns(now)) return;
  // Cheap, since it is asked all the time; the texts of waits() are not.
  const auto due = [&](Clock::time_point submitted, Clock::time_point deadline) { return now >= time_to_ask(submitted, deadline); };
  bool any = false;
  for (const auto& of_channel : active_)
    for (const auto& exchange : of_channel) any = any || due(exchange->operation().submitted, exchange->operation().deadline);
  if ((stopping_ && !stopped_) || resume_wanted_) any = true;
  if (!any) return;
  for (const Wait& wait : waits()) {
    if (wait.missing.empty() || !due(wait.submitted, wait.deadline)) continue;
    hold_inquest(wait);
    return;
  }
}

bool Context::check_turns(Clock::time_point now) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!active_[c].empty() || waiting_turn_[c].empty()) continue;
    const Operation& operation = *waiting_turn_[c].begin()->second;
    if (now < operation.deadline) continue;
    Failure failure;
    failure.culprits = {group_.rank};
    failure.verb = name_of(operation.verb);
    failure.unit = recorder_->unit_name(operation.label.unit);
    failure.message = out_of_turn_message(group_.rank, described(operation), operation);
    fail(std::move(failure), Tell::members);
    return false;
  }
  return true;
}

void Context::hold_inquest(const Wait& wait) {
  Inquest inquest;
  inquest.number = ++inquests_;
  inquest.judge_at = std::max(time_to_judge(wait.submitted, wait.deadline), Clock::now() + kTimeToAnswer);
  inquest.answers.resize(peers_.size());
  for (std::size_t r = 0; r < peers_.size(); ++r)
    if (peers_[r].gone) inquest.answers[r] = Answer{};
  inquest.answers[static_cast<std::size_t>(group_.rank.value)] = Answer{wait.missing, wait.what};
  inquest_ = std::move(inquest);
  PacketWriter out(SignalKind::ping, group_.id, now_epoch_);
  out.value(inquest_->number);
  signal_all(out.take());
}

void Context::conclude_inquest(Clock::time_point now) {
  const Inquest inquest = std::move(*inquest_);
  inquest_.reset();
  for (const Wait& wait : waits()) {
    if (wait.missing.empty() || now < time_to_judge(wait.submitted, wait.deadline)) continue;
    const Verdict verdict = judge(inquest, wait.missing);
    Failure failure;
    failure.culprits = verdict.culprits;
    failure.verb = wait.verb;
    failure.unit = wait.unit;
    failure.message = verdict_message(verdict, inquest, wait, group_.rank);
    std::vector<Rank> dead;
    for (const Rank r : verdict.silent) dead.push_back(group_.world_ranks[static_cast<std::size_t>(r.value)]);
    fail(std::move(failure), Tell::members, dead);
    for (const Rank world_rank : dead) found_dead_(world_rank);
    return;
  }
}

void Context::poll(Clock::time_point now) {
  finish_complete();
  poll_epoch();
  poll_deadlines(now);
  end_failed(now);
}

}  // namespace tessera::comm::mpi
