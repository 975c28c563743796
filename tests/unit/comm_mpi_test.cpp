// The parts of the MPI transport that need no MPI: scratch, inquests, the launcher's word, the shape of signals.
#include <doctest/doctest.h>

#include <map>

#include "comm/inquest.h"
#include "comm/mpi/bootstrap.h"
#include "comm/mpi/scratch.h"
#include "comm/mpi/signal.h"

using namespace tessera;
using namespace tessera::comm;
using namespace tessera::comm::mpi;
using std::chrono::milliseconds;

namespace {

std::optional<std::string> launched(int size, const std::map<std::string, std::string>& variables) {
  return launcher_disagrees(size, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Inquest inquest_of(std::vector<std::optional<std::vector<int>>> waits) {
  Inquest out;
  for (const auto& w : waits) {
    if (!w) {
      out.answers.emplace_back();
      continue;
    }
    Answer answer;
    for (const int r : *w) answer.waits_for.emplace_back(r);
    out.answers.emplace_back(answer);
  }
  return out;
}

std::vector<Rank> ranks(std::vector<int> list) {
  std::vector<Rank> out;
  for (const int r : list) out.emplace_back(r);
  return out;
}

}  // namespace

TEST_CASE("scratch: at most 8 MiB, two chunks per peer and channel that do not overlap, none for one rank") {
  CHECK(ScratchLayout(1, Bytes(1 << 20), kScratchLimit).total() == Bytes(0));
  for (const int w : {2, 3, 4, 7, 8, 16, 64, 128, 1000})
    for (const std::int64_t chunk : {8, 24, 1024, 4096, 1 << 20, 64 << 20})
      for (const Bytes limit : {kScratchLimit, kWorldScratchLimit}) {
        const ScratchLayout layout(w, Bytes(chunk), limit);
        if (limit == kScratchLimit || w <= 64) CHECK(layout.total() <= limit);
        std::int64_t expected = 0;
        for (const Channel c : {Channel::gather, Channel::reduce, Channel::control}) {
          CHECK(layout.chunk(c).value >= std::min<std::int64_t>(chunk, 64));
          CHECK(layout.chunk(c).value <= std::max<std::int64_t>(chunk, 64));
          for (int p = 0; p < w - 1; ++p)
            for (int s = 0; s < kSlots; ++s) {
              CHECK(layout.offset(c, p, s).value == expected);
              CHECK(expected % 64 == 0);
              expected += (layout.chunk(c).value + 63) / 64 * 64;
            }
        }
        CHECK(layout.total() == Bytes(expected));
      }
}

TEST_CASE("launcher: more processes started than MPI_COMM_WORLD has is two MPI installations mixed [B29]") {
  CHECK_FALSE(launched(1, {}));
  CHECK_FALSE(launched(4, {{"OMPI_COMM_WORLD_SIZE", "4"}}));
  const auto mixed = launched(1, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  REQUIRE(mixed);
  CHECK(mixed->find("started 4 processes") != std::string::npos);
  CHECK(mixed->find("two MPI installations") != std::string::npos);
  CHECK(launched(1, {{"PMI_SIZE", "2"}}));
  // Open MPI's word counts before PMI's, PMI's before Slurm's, and Slurm's only inside a step.
  CHECK_FALSE(launched(2, {{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMI_SIZE", "8"}}));
  CHECK_FALSE(launched(1, {{"SLURM_NTASKS", "4"}}));
  CHECK(launched(1, {{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}));
  CHECK_FALSE(launched(4, {{"OMPI_COMM_WORLD_SIZE", "2"}}));
  CHECK_FALSE(launched(1, {{"OMPI_COMM_WORLD_SIZE", "four"}}));
}

TEST_CASE("inquest: the silent are named before the idle, the idle before those that wait") {
  // 0 asks and misses 1 and 2; 1 waits for 2; 2 waits for nobody.
  CHECK(judge(inquest_of({{{1, 2}}, {{2}}, {std::vector<int>{}}}), ranks({1, 2})).culprits == ranks({2}));
  // 2 does not answer.
  const Verdict dead = judge(inquest_of({{{1}}, {{2}}, std::nullopt}), ranks({1}));
  CHECK(dead.culprits == ranks({2}));
  CHECK(dead.silent == ranks({2}));
  // A silent rank that nobody waits for is nobody's culprit.
  CHECK(judge(inquest_of({{{1}}, {std::vector<int>{}}, std::nullopt}), ranks({1})).culprits == ranks({1}));
  // All wait in a circle: whoever is missing.
  CHECK(judge(inquest_of({{{1}}, {{0}}}), ranks({1})).culprits == ranks({1}));
}

TEST_CASE("inquest: asks and judges before the deadline, with time to answer") {
  const auto t = Clock::now();
  for (const auto whole : {milliseconds(300), milliseconds(1'000), milliseconds(3'000), milliseconds(60'000)}) {
    const auto ask = time_to_ask(t, t + whole), judged = time_to_judge(t, t + whole);
    CHECK(ask >= t + whole / 2);
    CHECK(judged - ask >= whole / 10);
    CHECK(judged < t + whole);
  }
}

TEST_CASE("signals: an operation's header says all that must be equal, in 64 bytes") {
  Operation op;
  op.verb = Verb::reduce_scatter;
  op.label.channel = Channel::reduce;
  op.label.unit = UnitId(7);
  op.label.step = std::int64_t{1} << 40;
  op.label.leaf = 3;
  op.label.use = 2;
  op.label.detail = ~std::uint64_t{5};
  op.dtype = DType::bf16;
  op.shard_dtype = DType::f32;
  op.sequence = 12;
  op.count = Elements(std::int64_t{1} << 33);
  op.parts = 4;
  op.fold = Fold::onward;
  const Packet packet = pack(WireHeader::of(op, 9, 2));
  CHECK(packet.size() <= 64);
  const SignalHead head = head_of(packet.data(), packet.size());
  CHECK(head.kind == SignalKind::header);
  CHECK(head.context == 9);
  CHECK(head.epoch == 2);
  Operation other;
  PacketReader(packet.data(), packet.size()).value<WireHeader>().fill(other, 4);
  CHECK(other.matches(op));
  CHECK(other.sequence == 12);
  CHECK(other.parts == 4);
  other.root = Rank(1);
  CHECK_FALSE(other.matches(op));
}

TEST_CASE("signals: a failure arrives as it was sent, however long its texts, and a short packet reads as zeros") {
  comm::Failure failure;
  failure.message = std::string(100'000, 'm');
  failure.culprits = ranks({1, 2, 300});
  failure.verb = "barrier";
  failure.unit = "h.3";
  PacketWriter out(SignalKind::abort, 3, 4);
  write(out, failure);
  const Packet packet = out.take();
  CHECK(packet.size() < kMaxSignal);
  const SignalHead head = head_of(packet.data(), packet.size());
  CHECK(head.kind == SignalKind::abort);
  PacketReader in(packet.data(), packet.size());
  in.value<SignalKind>();
  in.value<std::int32_t>();
  in.value<std::int32_t>();
  const comm::Failure got = read_failure(in);
  CHECK(got.culprits == failure.culprits);
  CHECK(got.verb == "barrier");
  CHECK(got.unit == "h.3");
  CHECK(got.message == failure.message.substr(0, got.message.size()));
  CHECK(got.message.size() > 1'000);
  PacketReader cut(packet.data(), 3);
  CHECK(cut.value<std::int64_t>() == 0);
  CHECK(cut.ranks().empty());
  CHECK(cut.text().empty());
}
