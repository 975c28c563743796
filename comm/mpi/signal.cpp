#include "comm/mpi/signal.h"

#include <algorithm>

namespace tessera::comm::mpi {

namespace {

constexpr std::size_t kLongestText = 1800;  // four of them and the lists of ranks stay below kMaxSignal
constexpr std::size_t kMostRanks = 200;     // named in one list

template <class A, class B>
std::uint8_t nibbles(A low, B high) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(low) | (static_cast<unsigned>(high) << 4));
}

template <class T>
T low(std::uint8_t x) {
  return static_cast<T>(x & 0xf);
}

template <class T>
T high(std::uint8_t x) {
  return static_cast<T>(x >> 4);
}

}  // namespace

WireHeader WireHeader::of(const Operation& operation, int context, int epoch) {
  WireHeader out;
  out.channel_verb = nibbles(operation.label.channel, operation.verb);
  out.types = nibbles(operation.dtype, operation.shard_dtype);
  out.fold_reduce = nibbles(operation.fold, operation.reduce);
  out.root = operation.root.value;
  out.context = context;
  out.epoch = epoch;
  out.sequence = operation.sequence;
  out.count = operation.count.value;
  out.step = operation.label.step;
  out.leaf = operation.label.leaf;
  out.unit = operation.label.unit.value;
  out.use = operation.label.use;
  out.detail = operation.label.detail;
  return out;
}

void WireHeader::fill(Operation& operation, int ranks) const {
  operation.verb = high<Verb>(channel_verb);
  operation.label.channel = channel();
  operation.dtype = low<DType>(types);
  operation.shard_dtype = high<DType>(types);
  operation.fold = low<Fold>(fold_reduce);
  operation.reduce = high<ReduceOp>(fold_reduce);
  operation.root = Rank(root);
  operation.sequence = sequence;
  operation.count = Elements(count);
  operation.parts = operation.verb == Verb::all_gather || operation.verb == Verb::reduce_scatter ? ranks : 1;
  operation.label.step = step;
  operation.label.leaf = leaf;
  operation.label.unit = UnitId(unit);
  operation.label.use = use;
  operation.label.detail = detail;
}

PacketWriter& PacketWriter::text(const std::string& s) {
  const std::size_t n = std::min(s.size(), kLongestText);
  value(static_cast<std::uint32_t>(n));
  if (n > 0) append(s.data(), n);
  return *this;
}

PacketWriter& PacketWriter::ranks(const std::vector<Rank>& list) {
  const std::size_t n = std::min(list.size(), kMostRanks);
  value(static_cast<std::uint32_t>(n));
  for (std::size_t i = 0; i < n; ++i) value(static_cast<std::int32_t>(list[i].value));
  return *this;
}

std::string PacketReader::text() {
  const std::size_t n = value<std::uint32_t>();
  if (at_ + n > size_) return {};
  std::string out(reinterpret_cast<const char*>(data_ + at_), n);
  at_ += n;
  return out;
}

std::vector<Rank> PacketReader::ranks() {
  const std::size_t n = value<std::uint32_t>();
  std::vector<Rank> out;
  for (std::size_t i = 0; i < n && at_ + sizeof(std::int32_t) <= size_; ++i) out.emplace_back(value<std::int32_t>());
  return out;
}

Packet pack(const WireHeader& header) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  return {bytes, bytes + sizeof(header)};
}

SignalHead head_of(const std::byte* data, std::size_t size) {
  SignalHead out;
  if (size == 0) return out;
  if (static_cast<SignalKind>(data[0]) == SignalKind::header) {
    const auto header = PacketReader(data, size).value<WireHeader>();
    out.kind = SignalKind::header;
    out.context = header.context;
    out.epoch = header.epoch;
    return out;
  }
  PacketReader in(data, size);
  out.kind = in.value<SignalKind>();
  out.context = in.value<std::int32_t>();
  out.epoch = in.value<std::int32_t>();
  return out;
}

void write(PacketWriter& out, const Failure& failure) {
  out.value(failure.kind).text(failure.message).ranks(failure.culprits).text(failure.verb).text(failure.unit);
  out.value(static_cast<std::int32_t>(failure.rank.value)).text(failure.cause);
}

Failure read_failure(PacketReader& in) {
  Failure out;
  out.kind = in.value<FailureKind>();
  out.message = in.text();
  out.culprits = in.ranks();
  out.verb = in.text();
  out.unit = in.text();
  out.rank = Rank(in.value<std::int32_t>());
  out.cause = in.text();
  return out;
}

}  // namespace tessera::comm::mpi
