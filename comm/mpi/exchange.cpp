#include "comm/mpi/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/fold.h"
#include "comm/parts.h"

namespace tessera::comm::mpi {

namespace {

constexpr int kContribution = 0, kResult = 1;

std::byte* bytes_of(const void* p) { return const_cast<std::byte*>(static_cast<const std::byte*>(p)); }

bool reduces(const Operation& operation) { return operation.verb == Verb::reduce_scatter || operation.verb == Verb::all_reduce; }

}  // namespace

void Exchange::Flow::finish(std::int64_t k) {
  early[static_cast<std::size_t>(k % kWindow)] = true;
  while (done < posted && early[static_cast<std::size_t>(done % kWindow)]) {
    early[static_cast<std::size_t>(done % kWindow)] = false;
    ++done;
  }
}

Exchange::Exchange(ExchangeHost& host, std::shared_ptr<Operation> operation, std::shared_ptr<Exchange> before,
                   std::chrono::microseconds data_delay, std::shared_ptr<const void> keep)
    : host_(host),
      operation_(std::move(operation)),
      before_(std::move(before)),
      keep_(std::move(keep)),
      came_(host.world_ranks().size()),
      peers_(host.world_ranks().size()),
      data_from_(std::chrono::steady_clock::now() + data_delay) {
  came_[index(host_.rank())] = true;
  lay_out();
}

// Which bytes go to and come from whom.
void Exchange::lay_out() {
  const Operation& op = *operation_;
  if (op.announced) return;
  const std::int64_t size = size_of(op.dtype);
  const auto elements_of = [size](Bytes most) { return std::max<std::int64_t>(1, most.value / size); };
  chunk_elements_ = elements_of(reduces(op) && ranks() > 1 ? host_.scratch_layout().chunk(op.label.channel) : host_.chunk(host_.rank()));
  std::int64_t chunk = chunk_elements_ * size;
  const std::int64_t whole = op.count.value * size;
  const auto flow = [&](std::byte* data, std::int64_t bytes) {
    Flow out;
    out.data = data;
    out.bytes = bytes;
    out.chunk = chunk;
    return out;
  };
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (is_self(p)) continue;
    Peer& peer = peers_[p];
    const auto at = static_cast<std::int64_t>(p);
    if (!reduces(op)) chunk = elements_of(host_.chunk(Rank(static_cast<int>(p)))) * size;
    switch (op.verb) {
      case Verb::all_gather:
        peer.out[kResult] = flow(bytes_of(op.source.data), whole);
        peer.in[kResult] = flow(bytes_of(op.destination.data) + at * whole, whole);
        break;
      case Verb::reduce_scatter:
        peer.out[kContribution] = flow(bytes_of(op.source.data) + at * whole, whole);
        peer.in[kContribution] = flow(nullptr, whole);
        break;
      case Verb::all_reduce: {
        const Part theirs = part_of(op.count, static_cast<int>(p), ranks()), own = part_of(op.count, host_.rank().value, ranks());
        peer.out[kContribution] = peer.in[kResult] = flow(bytes_of(op.destination.data) + theirs.begin * size, theirs.size() * size);
        peer.in[kContribution] = flow(nullptr, own.size() * size);
        peer.out[kResult] = flow(bytes_of(op.destination.data) + own.begin * size, own.size() * size);
        break;
      }
      case Verb::broadcast:
        if (host_.rank() == op.root) peer.out[kResult] = flow(bytes_of(op.destination.data), whole);
        else if (Rank(static_cast<int>(p)) == op.root) peer.in[kResult] = flow(bytes_of(op.destination.data), whole);
        break;
      case Verb::barrier: break;
    }
  }
  if (op.verb == Verb::reduce_scatter) {
    own_elements_ = op.count.value;
    own_first_ = host_.rank().value * op.count.value;
  } else if (op.verb == Verb::all_reduce) {
    const Part own = part_of(op.count, host_.rank().value, ranks());
    own_elements_ = own.size();
    own_first_ = own.begin;
  }
  fold_chunks_ = (own_elements_ + chunk_elements_ - 1) / chunk_elements_;
  if (before_ != nullptr) first_slot_ = before_->first_slot_ + before_->fold_chunks_;
}

void Exchange::begin() {
  move_own_data();
  for (std::size_t p = 0; p < peers_.size(); ++p)
    for (int stream = 0; stream < kStreams; ++stream) post_receives(p, stream);
}

void Exchange::move_own_data() {
  const Operation& op = *operation_;
  if (op.verb != Verb::all_gather || op.announced) return;
  const std::int64_t bytes = to_bytes(op.count, op.dtype).value;
  std::byte* own = bytes_of(op.destination.data) + host_.rank().value * bytes;
  if (bytes > 0 && own != op.source.data) std::memcpy(own, op.source.data, static_cast<std::size_t>(bytes));
}

void Exchange::peer_came(Rank peer) { came_[index(peer)] = true; }

std::byte* Exchange::slot(std::size_t peer, std::int64_t chunk) const {
  const int dense = static_cast<int>(peer) - (peer > static_cast<std::size_t>(host_.rank().value) ? 1 : 0);
  return host_.scratch() +
         host_.scratch_layout().offset(operation_->label.channel, dense, static_cast<int>((first_slot_ + chunk) % kSlots)).value;
}

void Exchange::post_receives(std::size_t peer, int stream) {
  if (before_ != nullptr && !before_->peers_[peer].in[of(stream)].all_posted()) return;
  Flow& flow = peers_[peer].in[of(stream)];
  // A slot is free again when its chunk has been folded; a result may come into memory only when the contribution there has left.
  const std::int64_t slots_before = before_ == nullptr ? 0 : before_->fold_chunks_ - before_->folded_;
  const std::int64_t used = flow.data == nullptr ? folded_ - slots_before : flow.done;
  std::int64_t allowed = flow.chunks();
  if (operation_->verb == Verb::all_reduce && stream == kResult) allowed = peers_[peer].out[kContribution].done;
  while (flow.posted < allowed && flow.posted - used < kWindow) {
    const std::int64_t k = flow.posted++;
    std::byte* to = flow.data == nullptr ? slot(peer, k) : flow.data + k * flow.chunk;
    ++outstanding_;
    ++receives_;
    const Rank from(static_cast<int>(peer));
    host_.wire().receive(host_.world_ranks()[peer], Wire::tag(host_.context(), operation_->label.channel, stream), to,
                         Bytes(flow.size_of_chunk(k)), this, [self = shared_from_this(), &flow, from, stream, k](const Outcome& outcome) {
                           --self->outstanding_;
                           --self->receives_;
                           if (outcome.cancelled) return;
                           if (outcome.error != MPI_SUCCESS) {
                             if (!self->stopped_) self->host_.request_failed(from, *self->operation_, outcome.error);
                             return;
                           }
                           flow.finish(k);
                           self->host_.received(from, self->operation_->label.channel, stream, Bytes(outcome.bytes));
                           self->advance();
                         });
  }
}

void Exchange::post_sends(std::size_t peer, int stream) {
  if (before_ != nullptr && !before_->peers_[peer].out[of(stream)].all_posted()) return;
  Flow& flow = peers_[peer].out[of(stream)];
  std::int64_t available = flow.chunks();
  if (operation_->verb == Verb::all_reduce && stream == kResult) available = folded_;
  while (flow.posted < available && flow.posted - flow.done < kWindow && may_send(peer, flow)) {
    const std::int64_t k = flow.posted++;
    const Rank to(static_cast<int>(peer));
    ++outstanding_;
    const bool counted = operation_->label.channel != Channel::control;
    if (counted) ++host_.on_their_way(to);
    host_.sent(to, operation_->label.channel, stream, Bytes(flow.size_of_chunk(k)));
    host_.wire().send(host_.world_ranks()[peer], Wire::tag(host_.context(), operation_->label.channel, stream), flow.data + k * flow.chunk,
                      Bytes(flow.size_of_chunk(k)), this, [self = shared_from_this(), &flow, to, k, counted](const Outcome& outcome) {
                        --self->outstanding_;
                        if (counted) --self->host_.on_their_way(to);
                        if (outcome.error != MPI_SUCCESS) {
                          if (!self->stopped_) self->host_.request_failed(to, *self->operation_, outcome.error);
                          return;
                        }
                        flow.finish(k);
                        self->host_.advance();
                      });
  }
}

bool Exchange::fold_ready() const {
  if (folded_ == fold_chunks_ || (before_ != nullptr && before_->folded_ < before_->fold_chunks_)) return false;
  for (std::size_t p = 0; p < peers_.size(); ++p)
    if (!is_self(p) && peers_[p].in[kContribution].done <= folded_) return false;
  return true;
}

void Exchange::fold_chunk() {
  const Operation& op = *operation_;
  const std::int64_t first = folded_ * chunk_elements_;
  const Elements n(std::min(chunk_elements_, own_elements_ - first));
  const std::byte* own = bytes_of(op.source.data) + (own_first_ + first) * size_of(op.dtype);
  std::vector<const void*> contributions(peers_.size());
  for (std::size_t p = 0; p < peers_.size(); ++p) contributions[p] = is_self(p) ? own : slot(p, folded_);
  const std::int64_t at = op.verb == Verb::all_reduce ? own_first_ + first : first;
  std::byte* to = bytes_of(op.destination.data) + at * size_of(op.shard_dtype);
  if (op.reduce == ReduceOp::sum) fold_sum(contributions, op.dtype, to, op.shard_dtype, n, op.fold);
  else fold_extreme(contributions, op.dtype, to, n, op.reduce);
  ++folded_;
}

void Exchange::advance() {
  if (stopped_ || complete_) return;
  if (before_ != nullptr && before_->complete_) before_ = nullptr;
  while (fold_ready()) fold_chunk();
  const bool released = std::chrono::steady_clock::now() >= data_from_;
  bool over = folded_ == fold_chunks_;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (is_self(p)) continue;
    for (int stream = 0; stream < kStreams; ++stream) {
      post_receives(p, stream);
      if (released && came_[p]) post_sends(p, stream);
      over = over && peers_[p].in[of(stream)].over() && peers_[p].out[of(stream)].over();
    }
    over = over && came_[p];
  }
  complete_ = over;
}

void Exchange::stop() {
  if (stopped_) return;
  stopped_ = true;
  host_.wire().cancel_receives(this);
}

std::vector<Rank> Exchange::missing() const {
  std::vector<Rank> out;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (is_self(p)) continue;
    bool over = came_[p];
    for (int stream = 0; stream < kStreams; ++stream) over = over && peers_[p].in[of(stream)].over() && peers_[p].out[of(stream)].over();
    if (!over) out.emplace_back(static_cast<int>(p));
  }
  return out;
}

}  // namespace tessera::comm::mpi
