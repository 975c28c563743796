#include "comm/mpi/communicator.h"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/delay.h"
#include "comm/membership.h"
#include "comm/options.h"
#include "comm/recorder.h"
#include "tessera/error.h"

namespace tessera::comm::mpi {

namespace {

std::shared_ptr<Context> make_context(Courier& courier, Group group, const TransportOptions& options, const ScratchLayout& layout,
                                      std::byte* scratch, std::shared_ptr<const void> owner) {
  return std::make_shared<Context>(std::move(group), options, layout, scratch, std::move(owner), courier.wire(),
                                   [&courier](Rank world_rank) { courier.found_dead(world_rank); });
}

/// Of an attempt to make a communicator, on one rank; smaller is worse.
enum class Attempt : std::int64_t { no_memory, id_taken, made };

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<Courier> courier, std::shared_ptr<Context> context)
    : Communicator(context->rank(), context->size(), context->options().deadline),
      courier_(std::move(courier)),
      context_(std::move(context)) {
  context_->join(shared_recorder());
  courier_->add(context_);
}

MpiCommunicator::~MpiCommunicator() {
  MpiCommunicator::leave();
  courier_->post([context = context_] { context->close(); });
}

std::shared_ptr<MpiCommunicator> MpiCommunicator::of_world(std::shared_ptr<Courier> courier) {
  Group group;
  group.hosts = courier->hosts();
  group.rank = courier->rank();
  for (std::size_t r = 0; r < group.hosts.size(); ++r) group.world_ranks.emplace_back(static_cast<int>(r));
  const ScratchLayout layout(static_cast<int>(group.hosts.size()), courier->options().chunk, kWorldScratchLimit);
  const auto scratch = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(layout.total().value));
  auto context = make_context(*courier, std::move(group), courier->options(), layout, scratch->data(), scratch);
  return std::make_shared<MpiCommunicator>(std::move(courier), std::move(context));
}

std::string MpiCommunicator::host_of(Rank rank) const {
  check_rank(rank, size());
  return context_->hosts()[static_cast<std::size_t>(rank.value)];
}

void MpiCommunicator::start(std::shared_ptr<Operation> operation, Stream& stream) {
  context_->submit(operation);
  stream.enqueue([courier = courier_, context = context_, operation = std::move(operation)] {
    if (!context->begin(operation)) return;
    const auto delay = delay_of(*operation, context->rank(), 0, context->options().random_delay);
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    courier->post([context, operation] { context->start(operation); });
    operation->wait();
    context->forget(operation);
  });
}

// The members agree on an id that none of them has used. Two threads that split different communicators may propose the same one to
// different peers: then they try again.
std::shared_ptr<Communicator> MpiCommunicator::split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                                     std::chrono::milliseconds deadline) {
  check_deadline(deadline);
  for (;;) {
    const int reserved = courier_->reserve_id();
    const comm::Membership found = agree_on_members(*this, color, key, reserved);
    const int agreed = static_cast<int>(found.agreed);
    const bool claimed = courier_->claim_id(agreed, reserved);
    TransportOptions options = context_->options();
    options.deadline = deadline;
    const ScratchLayout layout(static_cast<int>(found.members.size()), options.chunk, kScratchLimit);
    std::optional<Buffer> scratch;
    Attempt all = claimed ? Attempt::made : Attempt::id_taken;
    try {
      scratch.emplace(layout.total(), Category::communication, ledger);
    } catch (const OutOfMemory&) { all = Attempt::no_memory; }
    {
      // The worst of all ranks is everybody's.
      Stream stream("tessera split");
      all_reduce({&all}, Elements(1), DType::i64, ReduceOp::min, Label{}, stream).wait_host();
    }
    if (reserved != agreed || all != Attempt::made) courier_->release_id(reserved);
    if (all != Attempt::made && claimed && reserved != agreed) courier_->release_id(agreed);
    if (all == Attempt::no_memory)
      throw OutOfMemory(fmt::format("a rank has no memory for the {} bytes of a communicator's scratch", layout.total().value),
                        layout.total());
    if (all == Attempt::id_taken) continue;
    Group group;
    group.id = agreed;
    group.rank = found.rank;
    for (const Rank member : found.members) {
      group.world_ranks.push_back(context_->world_ranks()[static_cast<std::size_t>(member.value)]);
      group.hosts.push_back(host_of(member));
    }
    auto context = make_context(*courier_, std::move(group), options, layout, scratch->data(), scratch->owner());
    return std::make_shared<MpiCommunicator>(courier_, std::move(context));
  }
}

Bytes MpiCommunicator::scratch_bytes(int size) const {
  check_size(size);
  return ScratchLayout(size, context_->options().chunk, kScratchLimit).total();
}

void MpiCommunicator::interrupt(const std::string& cause) {
  if (!context_->interrupt(cause)) return;
  courier_->post([context = context_] { context->stop(); });
}

void MpiCommunicator::resume() {
  const std::int32_t epoch = context_->epoch();
  const auto since = Clock::now();
  if (context_->wait_for_operations()) courier_->post([context = context_, since] { context->ask_to_resume(since); });
  else courier_->post([context = context_] { context->cannot_resume(); });
  if (const Cause why = context_->wait_for_epoch_after(epoch)) raise(*why, {}, dump());
}

void MpiCommunicator::leave() noexcept {
  if (recorder().left()) return;
  courier_->post([context = context_, counts = recorder().leave()] { context->leave(counts); });
}

void MpiCommunicator::failed_elsewhere() noexcept {
  courier_->post([courier = courier_.get()] { courier->expect_silence(); });
}

void MpiCommunicator::abort_with(const Failure& failure) noexcept {
  if (recorder().left()) return;
  courier_->post([context = context_, failure] { context->fail(failure, Context::Tell::members); });
  leave();
}

void MpiCommunicator::abort(const std::string& cause) noexcept {
  if (recorder().left()) return;
  courier_->post([context = context_, cause] { context->abort(cause); });
  leave();
}

}  // namespace tessera::comm::mpi
