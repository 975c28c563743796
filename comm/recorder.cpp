#include "comm/recorder.h"

#include <fmt/format.h>

#include <utility>

#include "comm/operation.h"

namespace tessera::comm {

namespace {

using Clock = std::chrono::steady_clock;

std::string unit_phrase(UnitId unit, const std::string& name) {
  if (unit == kNoUnit) return {};
  if (name.empty() || name == fmt::format("unit #{}", unit.value)) return fmt::format(" of unit #{}", unit.value);
  return fmt::format(" of unit '{}'", name);
}

std::string label_phrase(const Label& label) {
  std::string out;
  if (label.step >= 0) out += fmt::format(" step {}", label.step);
  if (label.leaf >= 0) out += fmt::format(" leaf {}", label.leaf);
  if (label.use != 0) out += fmt::format(" use {}", label.use);
  if (label.detail != 0) out += fmt::format(" detail {:x}", label.detail);
  return out;
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::string state_phrase(const OperationRecord& r, Clock::time_point now) {
  if (r.failed) {
    const std::string peers = r.waiting_for.empty() ? std::string() : " waiting for " + list_ranks(r.waiting_for);
    return fmt::format("failed{} after {:.3f} s", peers, seconds(r.finished - r.submitted));
  }
  if (r.finished != Clock::time_point{}) return fmt::format("done in {:.3f} s", seconds(r.finished - r.submitted));
  if (r.started == Clock::time_point{}) return fmt::format("queued behind its stream for {:.3f} s", seconds(now - r.submitted));
  if (r.waiting_for.empty()) return fmt::format("running for {:.3f} s", seconds(now - r.submitted));
  return fmt::format("waiting for {} for {:.3f} s", list_ranks(r.waiting_for), seconds(now - r.submitted));
}

}  // namespace

void FlightRecorder::enter(const std::shared_ptr<Operation>& operation) {
  const core::MutexLock lock(mutex_);
  operation->sequence = submitted_[static_cast<std::size_t>(operation->label.channel)]++;
  operation->submitted = Clock::now();
  operation->deadline = operation->submitted + deadline_;
  recent_.push_back(operation);
  if (recent_.size() > kRemembered) recent_.pop_front();
}

void FlightRecorder::restart() {
  const core::MutexLock lock(mutex_);
  submitted_ = {};
}

std::array<std::int64_t, kChannels> FlightRecorder::leave() {
  const core::MutexLock lock(mutex_);
  left_ = true;
  return submitted_;
}

bool FlightRecorder::left() const {
  const core::MutexLock lock(mutex_);
  return left_;
}

void FlightRecorder::ended(const OperationRecord& record) const {
  std::function<void(const OperationRecord&)> callback;
  {
    const core::MutexLock lock(mutex_);
    callback = callback_;
  }
  if (!callback) return;
  try {
    callback(record);
  } catch (...) {  // on a worker thread nobody could catch it; the operation itself has ended as it has
  }
}

std::array<std::int64_t, kChannels> FlightRecorder::submitted() const {
  const core::MutexLock lock(mutex_);
  return submitted_;
}

std::vector<OperationRecord> FlightRecorder::recent() const {
  std::deque<std::shared_ptr<Operation>> operations;
  {
    const core::MutexLock lock(mutex_);
    operations = recent_;
  }
  std::vector<OperationRecord> out;
  out.reserve(operations.size());
  for (const auto& operation : operations) out.push_back(operation->record());
  return out;
}

std::string FlightRecorder::dump() const {
  const Clock::time_point now = Clock::now();
  std::string out;
  for (const OperationRecord& r : recent())
    out += fmt::format("{} #{} {}{}{}, {} bytes: {}\n", name_of(r.label.channel), r.sequence, name_of(r.verb),
                       unit_phrase(r.label.unit, unit_name(r.label.unit)), label_phrase(r.label), r.bytes.value, state_phrase(r, now));
  return out;
}

Whereabouts FlightRecorder::whereabouts(const Operation& operation) const {
  const Operation* at = &operation;
  std::shared_ptr<Operation> last;
  if (operation.label.unit == kNoUnit) {
    const core::MutexLock lock(mutex_);
    for (const auto& remembered : recent_)
      if (remembered->label.unit != kNoUnit) last = remembered;
  }
  if (last != nullptr) at = last.get();
  const std::string unit = unit_name(at->label.unit);
  return {std::string(name_of(at->verb)), unit, describe(*at, unit)};
}

void FlightRecorder::name_units(std::vector<std::string> names) {
  const core::MutexLock lock(mutex_);
  names_ = std::move(names);
}

std::string FlightRecorder::unit_name(UnitId unit) const {
  if (unit == kNoUnit) return {};
  const core::MutexLock lock(mutex_);
  const auto i = static_cast<std::size_t>(unit.value);
  if (unit.value >= 0 && i < names_.size()) return names_[i];
  return fmt::format("unit #{}", unit.value);
}

void FlightRecorder::on_finish(std::function<void(const OperationRecord&)> callback) {
  const core::MutexLock lock(mutex_);
  callback_ = std::move(callback);
}

void FlightRecorder::set_deadline(std::chrono::milliseconds deadline) {
  const core::MutexLock lock(mutex_);
  deadline_ = deadline;
}

std::chrono::milliseconds FlightRecorder::deadline() const {
  const core::MutexLock lock(mutex_);
  return deadline_;
}

std::string describe(const OperationIdentity& operation, const std::string& unit_name) {
  const Elements full = operation.count * operation.parts;
  std::string size;
  if (operation.verb != Verb::barrier) size = fmt::format(" ({} elements of {})", full.value, name_of(operation.dtype));
  return fmt::format("{} #{}{}{}{}", name_of(operation.verb), operation.sequence, unit_phrase(operation.label.unit, unit_name),
                     label_phrase(operation.label), size);
}

std::string list_ranks(const std::vector<Rank>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0].value);
  std::string out = "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += std::to_string(ranks[i].value);
  }
  return out;
}

std::string disagreement_message(Rank one, const std::string& in_one, Rank other, const std::string& in_other) {
  return fmt::format("rank {} is in {}; rank {} is in {}: all ranks must make the same calls in the same order", one.value, in_one,
                     other.value, in_other);
}

std::string departure_message(Rank gone, std::int64_t calls, Channel channel, Rank rank, const std::string& waits_in) {
  return fmt::format("rank {} left after {} operations of channel {} (#0 to #{} were called); rank {} waits for it in {}", gone.value,
                     calls, name_of(channel), calls - 1, rank.value, waits_in);
}

std::string out_of_turn_message(Rank rank, const std::string& described, const Operation& operation) {
  return fmt::format("rank {} could not begin {} within {:.3f} s: an earlier operation of channel {} is held up by its stream", rank.value,
                     described, seconds(operation.deadline - operation.submitted), name_of(operation.label.channel));
}

std::string held_up_message(Rank rank, std::chrono::milliseconds deadline) {
  return fmt::format("rank {} could not resume the step within {:.3f} s: operations of the old one are held up by their streams",
                     rank.value, seconds(deadline));
}

}  // namespace tessera::comm
