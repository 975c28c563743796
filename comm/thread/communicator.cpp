#include "comm/thread/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "comm/delay.h"
#include "comm/host.h"
#include "comm/membership.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "comm/thread/move.h"
#include "tessera/error.h"

namespace tessera::comm {

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<Hub> hub, Rank rank, const TransportOptions& options)
    : Communicator(rank, hub->ranks(), options.deadline),
      hub_(std::move(hub)),
      options_(options),
      host_(host_name()),
      counter_(std::make_shared<TrafficCounter>()) {
  hub_->join(rank, shared_recorder());
}

ThreadCommunicator::~ThreadCommunicator() { ThreadCommunicator::leave(); }

std::string ThreadCommunicator::host_of(Rank rank) const {
  check_rank(rank, size());
  return host_;
}

void ThreadCommunicator::start(std::shared_ptr<Operation> operation, Stream& stream) {
  hub_->submit(rank(), operation);
  stream.enqueue([hub = hub_, counter = counter_, rank = rank(), options = options_, operation = std::move(operation)] {
    if (!hub->begin(operation)) return;
    const auto pause = [&](int phase) {
      const auto delay = delay_of(*operation, rank, phase, options.random_delay);
      if (delay.count() > 0) std::this_thread::sleep_for(delay);
    };
    pause(0);
    std::shared_ptr<Meeting> meeting;
    Cause why = hub->arrive(rank, operation, meeting);
    if (why == nullptr) {
      pause(1);
      Moved moved = Moved::in_part;
      try {
        moved = move_data(meeting->came, rank, options.chunk, [&] { return hub->failure() != nullptr; });
      } catch (const std::exception& e) {  // nobody above: this is a worker thread
        hub->fail_to_move(rank, *operation, e.what());
      }
      pause(2);
      why = hub->depart(rank, operation, *meeting, moved);
    }
    if (why == nullptr) {
      counter->add(traffic_of(*operation, rank, hub->ranks()));
      operation->finish();
    } else {
      operation->fail(why, Operation::Unless::ended);
    }
    hub->forget(rank, operation);
  });
}

std::shared_ptr<Communicator> ThreadCommunicator::split(int color, int key, std::shared_ptr<MemoryLedger> /*no scratch to enter*/,
                                                        std::chrono::milliseconds deadline) {
  check_deadline(deadline);
  const std::int64_t sequence = submitted(Channel::control);
  const Membership group = agree_on_members(*this, color, key);
  TransportOptions options = options_;
  options.deadline = deadline;
  return std::make_shared<ThreadCommunicator>(hub_->child(sequence, color, static_cast<int>(group.members.size())), group.rank, options);
}

Bytes ThreadCommunicator::scratch_bytes(int size) const {
  check_size(size);
  return Bytes(0);
}

void ThreadCommunicator::interrupt(const std::string& cause) { hub_->interrupt(rank(), cause); }
bool ThreadCommunicator::interrupted() const { return hub_->interrupted(); }
void ThreadCommunicator::resume() { hub_->resume(rank()); }
void ThreadCommunicator::leave() noexcept { hub_->leave(rank(), recorder().leave()); }

void ThreadCommunicator::abort(const std::string& cause) noexcept {
  hub_->abort(rank(), cause);
  leave();
}

Traffic ThreadCommunicator::traffic() const { return counter_->total(); }

}  // namespace tessera::comm
