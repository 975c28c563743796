#include "comm/operation.h"

#include <functional>
#include <utility>

#include "comm/recorder.h"

namespace tessera {

namespace {

struct Span {
  const std::byte* begin = nullptr;
  std::int64_t bytes = 0;
  bool meets(const Span& other) const {
    const std::less<const std::byte*> before;
    return bytes > 0 && other.bytes > 0 && before(begin, other.begin + other.bytes) && before(other.begin, begin + bytes);
  }
};

Span read_by(const Operation& o) {
  if (o.source.data == nullptr) return {};
  const Elements n = o.verb == Verb::reduce_scatter ? o.count * o.parts : o.count;
  return {static_cast<const std::byte*>(o.source.data), to_bytes(n, o.dtype).value};
}

Span written_by(const Operation& o) {
  if (o.destination.data == nullptr) return {};
  const Elements n = o.verb == Verb::all_gather ? o.count * o.parts : o.count;
  const DType dtype = o.verb == Verb::reduce_scatter ? o.shard_dtype : o.dtype;
  return {static_cast<const std::byte*>(o.destination.data), to_bytes(n, dtype).value};
}

}  // namespace

bool Operation::independent_of(const Operation& other) const {
  const Span written = written_by(*this);
  return !written.meets(written_by(other)) && !written.meets(read_by(other)) && !written_by(other).meets(read_by(*this));
}

bool OperationIdentity::matches(const OperationIdentity& other) const {
  return verb == other.verb && label.unit == other.label.unit && label.step == other.label.step && label.leaf == other.label.leaf &&
         label.use == other.label.use && label.detail == other.label.detail && dtype == other.dtype && shard_dtype == other.shard_dtype &&
         count == other.count && fold == other.fold && reduce == other.reduce && root == other.root;
}

bool Operation::begin() {
  const core::MutexLock lock(mutex_);
  if (state_ != State::queued) return false;
  state_ = State::running;
  started_ = std::chrono::steady_clock::now();
  return true;
}

void Operation::finish() {
  {
    const core::MutexLock lock(mutex_);
    state_ = State::ending;
    finished_ = std::chrono::steady_clock::now();
    waiting_for_.clear();
  }
  end(nullptr, nullptr);
}

bool Operation::fail(const std::shared_ptr<const comm::Failure>& failure, Unless unless, Owners* owners) {
  {
    const core::MutexLock lock(mutex_);
    if (state_ == State::ending || state_ == State::over) return false;
    if (state_ == State::running && unless == Unless::running) return false;
    state_ = State::ending;
    finished_ = std::chrono::steady_clock::now();
    failure_ = failure;
  }
  end(failure, owners);
  return true;
}

// One thread gets here, with the state at `ending`. The callback comes before anyone is told, so that whoever has waited for the
// operation may destroy what the callback uses.
void Operation::end(const std::shared_ptr<const comm::Failure>& failure, Owners* owners) {
  const std::shared_ptr<comm::FlightRecorder> recorder_of = std::move(recorder);
  std::string dump = failure == nullptr ? std::string() : recorder_of->dump();
  comm::Whereabouts where = failure == nullptr ? comm::Whereabouts{} : recorder_of->whereabouts(*this);
  recorder_of->ended(record());
  Owners released{std::move(source.owner), std::move(destination.owner)};
  if (owners != nullptr) std::swap(*owners, released);
  released = {};
  const core::MutexLock lock(mutex_);
  dump_ = std::move(dump);
  where_ = std::move(where);
  state_ = State::over;
  changed_.notify_all();
}

void Operation::waits_for(std::vector<Rank> peers) {
  const core::MutexLock lock(mutex_);
  waiting_for_ = std::move(peers);
}

bool Operation::over() const {
  const core::MutexLock lock(mutex_);
  return state_ == State::over;
}

void Operation::wait() const {
  const core::MutexLock lock(mutex_);
  while (state_ != State::over) changed_.wait(mutex_);
}

void Operation::wait_and_raise() const {
  std::shared_ptr<const comm::Failure> failure;
  comm::Whereabouts where;
  std::string dump;
  {
    const core::MutexLock lock(mutex_);
    while (state_ != State::over) changed_.wait(mutex_);
    if (failure_ == nullptr) return;
    failure = failure_;
    where = where_;
    dump = dump_;
  }
  comm::raise(*failure, where, dump);
}

OperationRecord Operation::record() const {
  const core::MutexLock lock(mutex_);
  OperationRecord out;
  out.verb = verb;
  out.label = label;
  out.sequence = sequence;
  out.bytes = full_bytes();
  out.submitted = submitted;
  out.started = started_;
  out.finished = finished_;
  out.failed = failure_ != nullptr;
  out.waiting_for = waiting_for_;
  return out;
}

}  // namespace tessera
