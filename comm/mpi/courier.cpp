#include "comm/mpi/courier.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "comm/mpi/error.h"
#include "tessera/error.h"

namespace tessera::comm::mpi {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// While something is on its way: first other threads get the core, then the thread sleeps, longer and longer.
constexpr int kYields = 40;
constexpr microseconds kShortestSleep{20}, kLongestSleep{100};
// While nothing is: how late a notice may be seen. Posted work wakes at once.
constexpr milliseconds kIdleSleep{2};
// How long the end of a world waits for peers that may be gone.
constexpr milliseconds kPatience{3000};

constexpr std::int32_t kNoContext = -1;

}  // namespace

Courier::Courier(std::function<Joined()> join, const TransportOptions& options) : options_(options) {
  thread_ = std::thread([this, join = std::move(join)] { run(join); });
  pthread_setname_np(thread_.native_handle(), "tessera mpi");
  std::exception_ptr failure;
  {
    const core::MutexLock lock(mutex_);
    while (!started_) changed_.wait(mutex_);
    failure = start_failure_;
  }
  if (failure != nullptr) {
    thread_.join();
    std::rethrow_exception(failure);
  }
}

Courier::~Courier() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Courier::post(std::function<void()> work) {
  const core::MutexLock lock(mutex_);
  posted_.push_back(std::move(work));
  changed_.notify_all();
}

void Courier::add(std::shared_ptr<Context> context) {
  post([this, context = std::move(context)] {
    const int id = context->context();
    contexts_.emplace(id, context);
    polled_.push_back(context);
    for (const Rank rank : dead_) context->process_died(rank);
    const auto early = unclaimed_.find(id);
    if (early == unclaimed_.end()) return;
    const std::vector<Unclaimed> signals = std::move(early->second);
    unclaimed_.erase(early);
    for (const Unclaimed& s : signals) take(s.source, s.packet.data(), s.packet.size());
  });
}

void Courier::found_dead(Rank world_rank) {
  if (world_rank == joined_.rank || !dead_.insert(world_rank).second) return;
  for (const auto& context : polled_) context->process_died(world_rank);
}

int Courier::reserve_id() {
  const core::MutexLock lock(mutex_);
  const int id = ids_.empty() ? 1 : *ids_.rbegin() + 1;
  if (id > wire_->largest_context())
    throw UsageError("this process has made as many communicators as MPI has tags for; use the same engine for longer");
  ids_.insert(id);
  return id;
}

bool Courier::claim_id(int agreed, int reserved) {
  const core::MutexLock lock(mutex_);
  if (agreed == reserved) return true;
  return ids_.insert(agreed).second;
}

void Courier::release_id(int id) {
  const core::MutexLock lock(mutex_);
  ids_.erase(id);
}

void Courier::run(const std::function<Joined()>& join) {
  std::exception_ptr failure;
  try {
    joined_ = join();
    wire_ = std::make_unique<Wire>(joined_.communicator,
                                   [this](Rank source, const std::byte* data, std::size_t size) { take(source, data, size); });
  } catch (...) { failure = std::current_exception(); }
  {
    const core::MutexLock lock(mutex_);
    started_ = true;
    start_failure_ = failure;
    changed_.notify_all();
  }
  if (failure == nullptr) serve();
}

template <class Step>
bool Courier::guarded(const Step& step) {
  try {
    return step();
  } catch (const std::exception& e) {
    // Nobody can be told but the ranks of this process.
    Failure failure;
    failure.message = e.what();
    if (const auto* of_mpi = dynamic_cast<const CommFailure*>(&e)) failure.verb = of_mpi->verb;
    for (const auto& context : polled_) context->fail(failure, Context::Tell::nobody);
    return false;
  }
}

void Courier::serve() {
  int idle = 0;
  for (;;) {
    bool moved = run_posted();
    moved = guarded([this] { return wire_->progress(); }) || moved;
    const auto now = Clock::now();
    for (const auto& context : polled_)
      guarded([&] {
        context->poll(now);
        return true;
      });
    remove_closed();
    bool over = false;
    guarded([&] { return over = farewell_over(now); });
    if (over) break;
    idle = moved ? 0 : idle + 1;
    if (!moved) rest(idle);
  }
  part();
}

bool Courier::run_posted() {
  std::deque<std::function<void()>> work;
  {
    const core::MutexLock lock(mutex_);
    std::swap(work, posted_);
  }
  for (const auto& w : work)
    guarded([&] {
      w();
      return true;
    });
  return !work.empty();
}

void Courier::take(Rank source, const std::byte* data, std::size_t size) {
  const SignalHead head = head_of(data, size);
  if (farewell_) farewell_->heard[static_cast<std::size_t>(source.value)] = Clock::now();
  if (head.kind == SignalKind::goodbye) {
    goodbyes_.insert(source);
    for (const auto& context : polled_) context->process_left(source);
    return;
  }
  const auto found = contexts_.find(head.context);
  if (found != contexts_.end()) {
    found->second->take(source, head, data, size);
    return;
  }
  const bool closed = closed_.contains(head.context);
  if (closed && (head.kind == SignalKind::ping || head.kind == SignalKind::interrupt)) {
    wire_->signal(source, PacketWriter(SignalKind::gone, head.context, head.epoch).take());
  } else if (head.kind == SignalKind::ping) {
    // This rank lives, and has not come out of the split() that makes the communicator.
    PacketReader in(data, size);
    in.value<SignalKind>();
    in.value<std::int32_t>();
    in.value<std::int32_t>();
    const auto number = in.value<std::int32_t>();
    wire_->signal(source, PacketWriter(SignalKind::pong, head.context, head.epoch).value(number).ranks({}).text({}).take());
  } else if (!closed && head.kind != SignalKind::pong && head.kind != SignalKind::gone) {
    unclaimed_[head.context].push_back({source, Packet(data, data + size)});
  }
}

void Courier::remove_closed() {
  for (auto it = contexts_.begin(); it != contexts_.end();) {
    if (it->second->failed()) any_failure_ = true;
    if (!it->second->removable()) {
      ++it;
      continue;
    }
    closed_.insert(it->first);
    std::erase(polled_, it->second);
    it = contexts_.erase(it);
  }
}

bool Courier::busy() const {
  if (farewell_) return true;
  return std::any_of(polled_.begin(), polled_.end(), [](const auto& context) { return context->busy(); });
}

void Courier::rest(int idle_rounds) {
  const bool outstanding = busy();
  if (outstanding && idle_rounds <= kYields) {
    sched_yield();
    return;
  }
  const core::MutexLock lock(mutex_);
  if (!posted_.empty()) return;
  const auto sleep =
      outstanding ? std::min<microseconds>(kLongestSleep, kShortestSleep * (1 + (idle_rounds - kYields) / 4)) : microseconds(kIdleSleep);
  changed_.wait_until(mutex_, Clock::now() + sleep);
}

// When nothing is left to do here, the peers are told, and their goodbyes are waited for: after that no message can meet a later world's.
bool Courier::farewell_over(Clock::time_point now) {
  {
    const core::MutexLock lock(mutex_);
    if (!closing_ || !posted_.empty()) return false;
  }
  const auto size = joined_.hosts.size();
  if (!farewell_) {
    if (!contexts_.empty() && busy()) return false;
    farewell_ = Farewell{now, now + options_.deadline / 4, std::vector<Clock::time_point>(size, now)};
    for (std::size_t r = 0; r < size; ++r)
      if (Rank(static_cast<int>(r)) != joined_.rank)
        wire_->signal(Rank(static_cast<int>(r)), PacketWriter(SignalKind::goodbye, kNoContext, 0).take());
    return false;
  }
  const auto waited = now - farewell_->begun;
  if (!dead_.empty() && waited > kPatience / 10) return true;
  const bool all = goodbyes_.size() + 1 == size;
  if (all && wire_->signals_on_their_way() == 0) return true;
  if (joined_.owner == MpiOwner::caller || any_failure_) return waited > kPatience;
  // MPI_Finalize would wait for the peers too; those that still answer are waited for.
  for (std::size_t r = 0; r < size; ++r) {
    const Rank rank(static_cast<int>(r));
    if (rank != joined_.rank && !goodbyes_.contains(rank) && now - farewell_->heard[r] > options_.deadline) return true;
  }
  if (now >= farewell_->ask_again) {
    farewell_->ask_again = now + options_.deadline / 4;
    for (std::size_t r = 0; r < size; ++r) {
      const Rank rank(static_cast<int>(r));
      if (rank == joined_.rank || goodbyes_.contains(rank)) continue;
      wire_->signal(rank, PacketWriter(SignalKind::ping, kNoContext, 0).take());
    }
  }
  return false;
}

void Courier::part() {
  const bool all = goodbyes_.size() + 1 == joined_.hosts.size() && dead_.empty();
  polled_.clear();
  contexts_.clear();
  wire_->close();
  const auto until = Clock::now() + kPatience / 10;
  while (!wire_->idle() && Clock::now() < until)
    if (!guarded([this] { return wire_->progress(); })) sched_yield();
  if (all && wire_->idle()) MPI_Comm_free(&joined_.communicator);
  wire_->abandon();  // after a failure: MPI may still touch this memory, so it stays
  if (joined_.owner == MpiOwner::tessera && all) MPI_Finalize();
}

}  // namespace tessera::comm::mpi
