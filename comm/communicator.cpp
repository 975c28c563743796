#include "tessera/communicator.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "comm/operation.h"
#include "comm/options.h"
#include "comm/recorder.h"
#include "tessera/error.h"

namespace tessera {

namespace {

using Address = std::uintptr_t;

Address address(const void* p) { return reinterpret_cast<Address>(p); }

void check_channel(const Label& label) {
  if (static_cast<int>(label.channel) >= kChannels) throw UsageError("an operation's label names no channel");
}

void check_count(Verb verb, Elements count, int parts, DType dtype) {
  if (count.value < 0) throw UsageError(fmt::format("{} of {} elements (fewer than none)", name_of(verb), count.value));
  const std::int64_t size = size_of(dtype);
  if (size == 0) throw UsageError(fmt::format("{} of an unknown element type", name_of(verb)));
  if (count.value > INT64_MAX / size / parts)
    throw UsageError(
        fmt::format("{} of {} elements on each of {} ranks (more bytes than 64 bits can count)", name_of(verb), count.value, parts));
}

void check_region(Verb verb, const char* name, const void* data, Elements count, DType dtype) {
  if (count.value == 0) return;
  if (data == nullptr) throw UsageError(fmt::format("{} of {} elements has no memory for '{}'", name_of(verb), count.value, name));
  if (address(data) % static_cast<Address>(size_of(dtype)) != 0)
    throw UsageError(
        fmt::format("{}: '{}' does not start at a multiple of its element size ({} bytes)", name_of(verb), name, size_of(dtype)));
}

bool overlap(const void* a, Bytes a_bytes, const void* b, Bytes b_bytes) {
  return a_bytes.value > 0 && b_bytes.value > 0 && address(a) < address(b) + static_cast<Address>(b_bytes.value) &&
         address(b) < address(a) + static_cast<Address>(a_bytes.value);
}

}  // namespace

std::string_view name_of(Channel channel) {
  switch (channel) {
    case Channel::gather: return "gather";
    case Channel::reduce: return "reduce";
    case Channel::control: return "control";
  }
  return "?";
}

std::string_view name_of(Verb verb) {
  switch (verb) {
    case Verb::all_gather: return "all_gather";
    case Verb::reduce_scatter: return "reduce_scatter";
    case Verb::all_reduce: return "all_reduce";
    case Verb::broadcast: return "broadcast";
    case Verb::barrier: return "barrier";
  }
  return "?";
}

Pending::Pending(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    if (operation_ != nullptr) operation_->wait();
    operation_ = std::move(other.operation_);
  }
  return *this;
}

Pending::~Pending() {
  if (operation_ != nullptr) operation_->wait();
}

bool Pending::done() const { return operation_ == nullptr || operation_->over(); }

void Pending::wait_host() {
  if (operation_ != nullptr) operation_->wait_and_raise();
}

void Pending::wait_on(Stream& stream) {
  if (operation_ == nullptr || operation_->over()) return;
  stream.enqueue([operation = operation_] { operation->wait(); });
}

Communicator::Communicator(Rank rank, int size, std::chrono::milliseconds deadline)
    : rank_(rank), size_(size), recorder_(std::make_shared<Recorder>(deadline)) {}

Communicator::~Communicator() = default;

Pending Communicator::all_gather(ConstRegion shard, Region full, Elements per_rank, DType dtype, const Label& label, Stream& stream) {
  check_channel(label);
  check_count(Verb::all_gather, per_rank, size_, dtype);
  check_region(Verb::all_gather, "shard", shard.data, per_rank, dtype);
  check_region(Verb::all_gather, "full", full.data, per_rank, dtype);
  const Bytes part = to_bytes(per_rank, dtype);
  const auto* own = static_cast<const std::byte*>(full.data) + rank_.value * part.value;
  if (shard.data != own && overlap(shard.data, part, full.data, part * size_))
    throw UsageError("all_gather: 'shard' overlaps 'full' elsewhere than at this rank's own range");
  auto operation = std::make_shared<Operation>();
  operation->verb = Verb::all_gather;
  operation->label = label;
  operation->dtype = operation->shard_dtype = dtype;
  operation->count = per_rank;
  operation->parts = size_;
  operation->source = std::move(shard);
  operation->destination = std::move(full);
  return submit(std::move(operation), stream);
}

Pending Communicator::reduce_scatter(ConstRegion full, Region shard, Elements per_rank, DType dtype, Fold fold, const Label& label,
                                     Stream& stream, std::optional<DType> shard_dtype) {
  const DType into = shard_dtype.value_or(dtype);
  check_channel(label);
  check_count(Verb::reduce_scatter, per_rank, size_, dtype);
  check_count(Verb::reduce_scatter, per_rank, size_, into);
  if (into != dtype && !(into == DType::f32 && (dtype == DType::bf16 || dtype == DType::f16)))
    throw UsageError(fmt::format("reduce_scatter of {} into a shard of {}: a sum is kept in its own type, or in fp32 for 16-bit types",
                                 name_of(dtype), name_of(into)));
  check_region(Verb::reduce_scatter, "full", full.data, per_rank, dtype);
  check_region(Verb::reduce_scatter, "shard", shard.data, per_rank, into);
  const Bytes part = to_bytes(per_rank, dtype);
  const auto* own = static_cast<const std::byte*>(full.data) + rank_.value * part.value;
  const bool in_place = shard.data == own && fold == Fold::start && into == dtype;
  if (!in_place && overlap(shard.data, to_bytes(per_rank, into), full.data, part * size_))
    throw UsageError("reduce_scatter: 'shard' overlaps 'full' (allowed only with Fold::start, one element type, at this rank's own range)");
  auto operation = std::make_shared<Operation>();
  operation->verb = Verb::reduce_scatter;
  operation->label = label;
  operation->dtype = dtype;
  operation->shard_dtype = into;
  operation->count = per_rank;
  operation->parts = size_;
  operation->fold = fold;
  operation->source = std::move(full);
  operation->destination = std::move(shard);
  return submit(std::move(operation), stream);
}

Pending Communicator::all_reduce(Region data, Elements count, DType dtype, ReduceOp op, const Label& label, Stream& stream) {
  check_channel(label);
  check_count(Verb::all_reduce, count, 1, dtype);
  check_region(Verb::all_reduce, "data", data.data, count, dtype);
  auto operation = std::make_shared<Operation>();
  operation->verb = Verb::all_reduce;
  operation->label = label;
  operation->dtype = operation->shard_dtype = dtype;
  operation->count = count;
  operation->reduce = op;
  operation->source.data = data.data;
  operation->destination = std::move(data);
  return submit(std::move(operation), stream);
}

Pending Communicator::broadcast(Region data, Elements count, DType dtype, Rank root, const Label& label, Stream& stream) {
  check_channel(label);
  check_count(Verb::broadcast, count, 1, dtype);
  check_region(Verb::broadcast, "data", data.data, count, dtype);
  if (root.value < 0 || root.value >= size_)
    throw UsageError(fmt::format("broadcast from rank {}, but the ranks are 0 to {}", root.value, size_ - 1));
  auto operation = std::make_shared<Operation>();
  operation->verb = Verb::broadcast;
  operation->label = label;
  operation->dtype = operation->shard_dtype = dtype;
  operation->count = count;
  operation->root = root;
  operation->source.data = data.data;
  operation->destination = std::move(data);
  return submit(std::move(operation), stream);
}

Pending Communicator::barrier(const Label& label, Stream& stream) {
  check_channel(label);
  auto operation = std::make_shared<Operation>();
  operation->verb = Verb::barrier;
  operation->label = label;
  operation->dtype = operation->shard_dtype = DType::u8;
  return submit(std::move(operation), stream);
}

Pending Communicator::submit(std::shared_ptr<Operation> operation, Stream& stream) {
  if (recorder_->left()) throw UsageError(fmt::format("{} on a communicator that this rank has left or aborted", name_of(operation->verb)));
  operation->recorder = recorder_;
  recorder_->enter(operation);
  start(operation, stream);
  return Pending(std::move(operation));
}

Buffer Communicator::allocate(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) {
  return Buffer(bytes, category, std::move(ledger));
}

std::string Communicator::reserve(Bytes /*nothing is shared*/) { return {}; }

Communicator::Flat Communicator::allocate_flat(Bytes per_rank, Category category, std::shared_ptr<MemoryLedger> ledger) {
  if (!full_flat_addressable())
    throw UsageError(fmt::format("allocate_flat over {}: the ranks share no memory; gather into memory from allocate()", transport()));
  Flat out;
  out.shard = allocate(per_rank, category, std::move(ledger));
  out.full = out.shard.data();
  return out;
}

void Communicator::abort_with(const comm::Failure& failure) noexcept { abort(failure.message); }

void Communicator::name_units(std::vector<std::string> names) { recorder_->name_units(std::move(names)); }
std::string Communicator::unit_name(UnitId unit) const { return recorder_->unit_name(unit); }

std::int64_t Communicator::submitted(Channel channel) const { return recorder_->submitted()[static_cast<std::size_t>(channel)]; }
std::vector<OperationRecord> Communicator::recent() const { return recorder_->recent(); }
std::string Communicator::dump() const { return recorder_->dump(); }
void Communicator::on_finish(std::function<void(const OperationRecord&)> callback) { recorder_->on_finish(std::move(callback)); }
void Communicator::set_deadline(std::chrono::milliseconds deadline) {
  comm::check_deadline(deadline);
  recorder_->set_deadline(deadline);
}
std::chrono::milliseconds Communicator::deadline() const { return recorder_->deadline(); }

}  // namespace tessera
