#include "comm/node/communicator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "comm/host.h"
#include "comm/membership.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "tessera/error.h"

namespace tessera::comm::node {

namespace {

constexpr std::uint64_t kInvite = 0x6e6f6465;  // "node"

/// What the first rank of a new communicator tells the others.
struct Invitation {
  std::int64_t pid, fd;
  std::int64_t window_bytes, total;  ///< as it has laid out the segment
};

template <class T>
std::vector<T> tell_all(Communicator& parent, const T& mine, std::uint64_t what) {
  std::vector<T> all(static_cast<std::size_t>(parent.size()));
  Label label;
  label.detail = what;
  Stream stream("tessera node");
  parent.all_gather({&mine}, {all.data()}, Elements(sizeof(T)), DType::u8, label, stream).wait_host();
  return all;
}

/// Throws the same on every rank: what the first one that failed says.
void agree_on(Communicator& parent, const std::string& error) {
  std::array<char, 256> mine{};
  error.copy(mine.data(), mine.size() - 1);
  for (const auto& said : tell_all(parent, mine, kInvite))
    if (said[0] != '\0') throw RuntimeFailure(said.data());
}

bool is_shared(Category category) {
  switch (category) {
    case Category::parameters:
    case Category::gradients:
    case Category::full_parameters:
    case Category::full_gradients: return true;
    default: return false;
  }
}

}  // namespace

SegmentLayout layout_for(int ranks, Bytes chunk) { return {ranks, chunk, words_bytes(ranks), memory_of_host()}; }

std::shared_ptr<NodeCommunicator> assemble(Communicator& parent, int color, int key, const TransportOptions& options,
                                           const std::shared_ptr<MemoryLedger>& ledger, std::shared_ptr<const World> met_on) {
  const Membership group = agree_on_members(parent, color, key);
  const SegmentLayout layout = layout_for(static_cast<int>(group.members.size()), options.chunk);
  Segment segment;
  std::string error;
  if (group.rank == Rank(0)) {
    try {
      segment = Segment::create(layout.total);
    } catch (const std::exception& e) { error = e.what(); }
  }
  const auto invitations = tell_all(parent, Invitation{getpid(), segment.fd(), layout.window_bytes.value, layout.total.value}, kInvite);
  const Invitation& first = invitations[static_cast<std::size_t>(group.members.front().value)];
  if (group.rank != Rank(0) && first.fd >= 0) {
    try {
      segment = Segment::open(static_cast<int>(first.pid), static_cast<int>(first.fd), layout.total);
    } catch (const std::exception& e) { error = e.what(); }
  }
  if (first.window_bytes != layout.window_bytes.value || first.total != layout.total.value)
    error = "the ranks lay out their shared memory differently: give all of them the same TransportOptions";
  agree_on(parent, error);
  segment.close_fd();
  return std::make_shared<NodeCommunicator>(std::move(segment), layout, group.rank, options, ledger, std::move(met_on));
}

NodeCommunicator::NodeCommunicator(Segment segment, const SegmentLayout& layout, Rank rank, const TransportOptions& options,
                                   const std::shared_ptr<MemoryLedger>& ledger, std::shared_ptr<const World> met_on)
    : Communicator(rank, layout.ranks, options.deadline),
      met_on_(std::move(met_on)),
      context_(std::make_shared<Context>(std::move(segment), layout, rank, options, shared_recorder())),
      host_(host_name()) {
  if (ledger != nullptr) {
    std::byte* const at = context_->memory() + layout.window(rank, Channel::gather, 0).value;
    windows_ = Buffer(std::shared_ptr<std::byte>(context_, at), layout.scratch(), Category::communication, ledger);
  }
  context_->meet();
}

NodeCommunicator::~NodeCommunicator() {
  NodeCommunicator::leave();
  if (met_on_ != nullptr && context_->failed()) Insider::failed_elsewhere(met_on_->communicator());
}

std::string NodeCommunicator::host_of(Rank rank) const {
  check_rank(rank, size());
  return host_;
}

void NodeCommunicator::start(std::shared_ptr<Operation> operation, Stream& stream) {
  context_->submit(operation);
  stream.enqueue([context = context_, operation = std::move(operation)] { context->carry_out(operation); });
}

std::shared_ptr<Communicator> NodeCommunicator::split(int color, int key, std::shared_ptr<MemoryLedger> ledger,
                                                      std::chrono::milliseconds deadline) {
  check_deadline(deadline);
  TransportOptions options = context_->options();
  options.deadline = deadline;
  return assemble(*this, color, key, options, ledger, met_on_);
}

Bytes NodeCommunicator::scratch_bytes(int size) const {
  check_size(size);
  return layout_for(size, context_->options().chunk).scratch();
}

std::string NodeCommunicator::reserve(Bytes bytes) {
  struct Ask {
    std::int64_t bytes, free;
  };
  const Bytes limit = context_->options().shared_memory;
  const Bytes available = free_memory();
  const auto all = tell_all(*this, Ask{bytes.value, (limit > Bytes(0) ? std::min(limit, available) : available).value}, kInvite);
  std::int64_t wanted = 0, free = std::numeric_limits<std::int64_t>::max();
  bool fits = true;
  for (const Ask& ask : all) {
    wanted += ask.bytes;
    free = std::min(free, ask.free);
    fits = fits && Bytes(ask.bytes) <= context_->layout().own_bytes;
  }
  refused_ = !fits || wanted > free || Bytes(wanted) > context_->layout().flats_bytes;
  if (!refused_) return {};
  return fmt::format("{} ranks need {} bytes of shared memory, and {} are free", size(), wanted, free);
}

Buffer NodeCommunicator::allocate(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) {
  if (refused_ || !is_shared(category)) return Buffer(bytes, category, std::move(ledger));
  return allocate_shared(bytes, category, std::move(ledger));
}

Buffer NodeCommunicator::allocate_shared(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) {
  const std::optional<Bytes> offset = bytes > Bytes(0) && ledger != nullptr ? context_->own().take(bytes) : std::nullopt;
  if (!offset) return Buffer(bytes, category, std::move(ledger));
  const Bytes at = context_->layout().own(rank()) + *offset;
  std::shared_ptr<std::byte> memory(context_->memory() + at.value, [context = context_, at, offset, bytes](std::byte*) {
    context->segment().give_back(at, bytes);
    context->own().give(*offset, bytes);
  });
  return Buffer(std::move(memory), bytes, category, std::move(ledger));
}

Communicator::Flat NodeCommunicator::allocate_flat(Bytes per_rank, Category category, std::shared_ptr<MemoryLedger> ledger) {
  if (refused_) return Communicator::allocate_flat(per_rank, category, std::move(ledger));
  Flat out;
  const std::optional<Bytes> offset = context_->flats().take(per_rank * size());
  if (!offset)
    throw OutOfMemory(fmt::format("no room for {} bytes on each of {} ranks in their shared memory", per_rank.value, size()), per_rank);
  std::byte* const full = context_->memory() + (context_->layout().flats_begin + *offset).value;
  const Bytes at = context_->layout().flats_begin + *offset + per_rank * rank().value;
  // Peers may still read what this rank is done with: the pages go when the last rank lets go of the communicator.
  std::shared_ptr<std::byte> memory(context_, context_->memory() + at.value);
  out.shard = Buffer(std::move(memory), per_rank, category, std::move(ledger));
  out.full = full;
  return out;
}

void NodeCommunicator::leave() noexcept { context_->leave(recorder().leave()); }

void NodeCommunicator::abort_with(const Failure& failure) noexcept {
  context_->abort(failure);
  leave();
}

void NodeCommunicator::abort(const std::string& cause) noexcept {
  context_->abort(cause);
  leave();
}

}  // namespace tessera::comm::node
