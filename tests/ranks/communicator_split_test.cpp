// Communicators made from communicators, side by side and one after another [B43, B44].
#include <dirent.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <fstream>
#include <thread>

#include "tests/ranks/communicator_values.h"
#include "tests/ranks/rank_test.h"

using namespace tessera;
using namespace tessera::testing;
using std::chrono::milliseconds;

// AddressSanitizer keeps freed memory for a while to catch its use, ThreadSanitizer shadows of it: resident memory says nothing then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeepsFreedMemory = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kKeepsFreedMemory = true;
#else
constexpr bool kKeepsFreedMemory = false;
#endif
#else
constexpr bool kKeepsFreedMemory = false;
#endif

namespace {

constexpr milliseconds kPatience{20'000};

std::size_t entries(const char* folder) {
  std::size_t n = 0;
  if (DIR* d = opendir(folder)) {
    while (readdir(d) != nullptr) ++n;
    closedir(d);
  }
  return n;
}

std::int64_t resident_kilobytes() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == "VmRSS:") {
      std::int64_t kb = 0;
      in >> kb;
      return kb;
    }
  return 0;
}

std::vector<int> ranks_of(Communicator& c, World& world, Stream& stream) {
  const std::int64_t mine = world.rank().value;
  std::vector<std::int64_t> all(static_cast<std::size_t>(c.size()));
  c.all_gather({&mine}, {all.data()}, Elements(1), DType::i64, label(Channel::control), stream).wait_host();
  return {all.begin(), all.end()};
}

}  // namespace

RANK_TEST("split: ranks of a colour, ordered by key and rank")(World& world) {
  Stream stream("control");
  const auto ledger = std::make_shared<MemoryLedger>();
  const auto c = world.communicator().split(world.rank().value % 3, -world.rank().value, ledger, kPatience);
  std::vector<int> expected;
  for (int r = world.size() - 1; r >= 0; --r)
    if (r % 3 == world.rank().value % 3) expected.push_back(r);
  CHECK(c->size() == static_cast<int>(expected.size()));
  CHECK(expected[static_cast<std::size_t>(c->rank().value)] == world.rank().value);
  CHECK(ranks_of(*c, world, stream) == expected);
  const auto same_keys = world.communicator().split(0, 5, ledger, kPatience);
  CHECK(same_keys->rank() == world.rank());
}

RANK_TEST("split: the child has numbers, traffic and a deadline of its own")(World& world) {
  Stream stream("control");
  const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), milliseconds(12'345));
  CHECK(c->deadline() == milliseconds(12'345));
  CHECK(c->submitted(Channel::control) == 0);
  CHECK(c->traffic().payload_sent == Bytes(0));
  CHECK(c->traffic().control_sent == Bytes(0));
  c->barrier({}, stream).wait_host();
  CHECK(c->submitted(Channel::control) == 1);
  CHECK(c->submitted(Channel::gather) == 0);
}

RANK_TEST("split: scratch is what scratch_bytes said, in the ledger, until the communicator goes")(World& world) {
  for (int colours = 1; colours <= world.size(); ++colours) {
    const auto ledger = std::make_shared<MemoryLedger>();
    auto c = world.communicator().split(world.rank().value % colours, 0, ledger, kPatience);
    CHECK(ledger->current()[Category::communication] == world.communicator().scratch_bytes(c->size()));
    CHECK(ledger->current().total <= Bytes((transport() == "hierarchical" ? 3 : 1) * (8 << 20)));  // three communicators
    Stream stream("all");
    std::vector<double> data(10'000, 1.0);
    c->all_reduce({data.data()}, Elements(10'000), DType::f64, ReduceOp::sum, label(Channel::reduce), stream).wait_host();
    CHECK(data[9'999] == c->size());
    CHECK(ledger->peak().total == world.communicator().scratch_bytes(c->size()));
    world.communicator().barrier({}, stream).wait_host();
    c.reset();
    // On mpi the communication thread lets go of it a moment later.
    for (int i = 0; i < 5'000 && ledger->current().total != Bytes(0); ++i) std::this_thread::sleep_for(milliseconds(1));
    CHECK(ledger->current().total == Bytes(0));
  }
}

RANK_TEST("split: of a split, and interleaved use of all of them")(World& world) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const auto half = world.communicator().split(world.rank().value % 2, world.rank().value, ledger, kPatience);
  const auto part = half->split(half->rank().value / 2, 0, ledger, kPatience);
  Stream a("a"), b("b"), c("c");
  for (int round = 0; round < 10; ++round) {
    std::vector<float> x(1000, 1.0f), y(2000, 2.0f), z(3000, 3.0f);
    Pending px = world.communicator().all_reduce({x.data()}, Elements(1000), DType::f32, ReduceOp::sum, label(Channel::reduce), a);
    Pending py = half->all_reduce({y.data()}, Elements(2000), DType::f32, ReduceOp::sum, label(Channel::reduce), b);
    Pending pz = part->all_reduce({z.data()}, Elements(3000), DType::f32, ReduceOp::sum, label(Channel::reduce), c);
    pz.wait_host();
    px.wait_host();
    py.wait_host();
    CHECK(x[999] == static_cast<float>(world.size()));
    CHECK(y[1999] == 2.0f * static_cast<float>(half->size()));
    CHECK(z[2999] == 3.0f * static_cast<float>(part->size()));
  }
}

RANK_TEST("streams: an operation runs after what its stream holds, and what waits for it runs after it")(World& world) {
  Stream compute("compute"), transfer("transfer");
  std::vector<float> shard(100), full(static_cast<std::size_t>(100 * world.size()));
  std::atomic<bool> right{false};
  for (int round = 1; round <= 20; ++round) {
    const auto expected = static_cast<float>(round);
    transfer.enqueue([&shard, expected] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      std::fill(shard.begin(), shard.end(), expected);
    });
    Pending p = world.communicator().all_gather({shard.data()}, {full.data()}, Elements(100), DType::f32, label(Channel::gather), transfer);
    p.wait_on(compute);
    compute.enqueue([&] { right = std::all_of(full.begin(), full.end(), [&](float x) { return x == expected; }); });
    compute.synchronize();
    CHECK(right);
  }
}

RANK_TEST("streams: operations of one channel on two streams keep the order of the calls")(World& world) {
  Stream a("a"), b("b");
  std::vector<float> data(1, static_cast<float>(world.rank().value + 1));
  a.enqueue([] { std::this_thread::sleep_for(milliseconds(5)); });
  Pending first = world.communicator().all_reduce({data.data()}, Elements(1), DType::f32, ReduceOp::sum, label(Channel::reduce), a);
  Pending second = world.communicator().all_reduce({data.data()}, Elements(1), DType::f32, ReduceOp::sum, label(Channel::reduce), b);
  second.wait_host();
  CHECK(first.done());
  CHECK(data[0] == static_cast<float>(world.size() * world.size() * (world.size() + 1) / 2));
}

RANK_TEST("streams: operations that follow each other on two streams, of all sizes, give what they give one by one")(World& world) {
  const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), kPatience);
  constexpr std::int64_t kSizes[] = {20'011, 1, 700, 0, 5'000, 70'000};
  constexpr int kRounds = 2;
  const int ranks = c->size(), own = c->rank().value;
  struct Work {
    std::int64_t n;
    std::uint64_t salt;
    std::vector<float> shard, gathered, contribution, sum, everywhere;
  };
  std::vector<Work> work;
  for (int round = 0; round < kRounds; ++round)
    for (const std::int64_t n : kSizes) {
      const std::uint64_t salt = work.size();
      const auto size = static_cast<std::size_t>(n);
      work.push_back({n, salt, values<float>(own, n, salt), std::vector<float>(size * static_cast<std::size_t>(ranks)),
                      values<float>(own, n * ranks, salt), std::vector<float>(size), values<float>(own, n, salt)});
    }
  constexpr std::int64_t kChain = 3'000;
  const auto link = values<float>(own, kChain * ranks, 99);
  std::vector<float> chain(kChain);
  {
    Stream a("a"), b("b"), x("x"), y("y");
    std::vector<Pending> all;
    for (std::size_t i = 0; i < work.size(); ++i) {
      Work& w = work[i];
      Stream& gather = i % 2 == 0 ? a : b;
      Stream& reduce = i % 2 == 0 ? x : y;
      all.push_back(c->all_gather({w.shard.data()}, {w.gathered.data()}, Elements(w.n), DType::f32, label(Channel::gather), gather));
      all.push_back(c->reduce_scatter({w.contribution.data()}, {w.sum.data()}, Elements(w.n), DType::f32, Fold::start,
                                      label(Channel::reduce), reduce));
      // Into the same sum each time: the order is part of the result.
      all.push_back(c->reduce_scatter({link.data()}, {chain.data()}, Elements(kChain), DType::f32, i == 0 ? Fold::start : Fold::onward,
                                      label(Channel::reduce), i % 2 == 0 ? y : x));
      all.push_back(c->all_reduce({w.everywhere.data()}, Elements(w.n), DType::f32, ReduceOp::sum, label(Channel::gather), gather));
    }
    for (Pending& p : all) p.wait_host();
  }
  for (const Work& w : work) {
    bool right = true;
    for (std::int64_t i = 0; i < w.n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      for (int r = 0; r < ranks; ++r) right = right && w.gathered[static_cast<std::size_t>(r * w.n + i)] == value<float>(r, i, w.salt);
      right = right && w.sum[at] == sum_of<float>(ranks, own * w.n + i, 0.0f, w.salt);
      right = right && w.everywhere[at] == sum_of<float>(ranks, i, 0.0f, w.salt);
    }
    CHECK_MESSAGE(right, w.n, " elements, number ", w.salt);
  }
  bool right = true;
  for (std::int64_t i = 0; i < kChain; ++i) {
    float sum = 0.0f;
    for (std::size_t round = 0; round < work.size(); ++round) sum = sum_of<float>(ranks, own * kChain + i, sum, 99);
    right = right && chain[static_cast<std::size_t>(i)] == sum;
  }
  CHECK(right);
}

RANK_TEST("streams: channels do not wait for each other")(World& world) {
  // A gather that is held up by its stream on every rank until a reduction has been through.
  Stream gather("gather"), reduce("reduce");
  std::atomic<bool> through{false};
  gather.enqueue([&through] {
    while (!through) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  float shard = 1;
  std::vector<float> full(static_cast<std::size_t>(world.size()));
  Pending held = world.communicator().all_gather({&shard}, {full.data()}, Elements(1), DType::f32, label(Channel::gather), gather);
  world.communicator().barrier(label(Channel::reduce), reduce).wait_host();
  CHECK_FALSE(held.done());
  through = true;
  CHECK_NOTHROW(held.wait_host());
}

RANK_TEST("streams: a gather goes through while reductions before it are full of data that waits for one more rank")(World& world) {
  const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), kPatience);
  Stream gather("gather"), control("control"), first("first"), second("second");
  constexpr std::int64_t n = 1'000'000;
  const float shard = 1;
  std::vector<float> full(static_cast<std::size_t>(n * c->size()), 1.0f), sum(n), more(n), all(static_cast<std::size_t>(c->size()));
  std::vector<Pending> pending;
  const auto reduce = [&] {
    pending.push_back(c->reduce_scatter({full.data()}, {sum.data()}, Elements(n), DType::f32, Fold::start, label(Channel::reduce), first));
    pending.push_back(
        c->reduce_scatter({full.data()}, {more.data()}, Elements(n), DType::f32, Fold::start, label(Channel::reduce), second));
  };
  const bool last = c->rank().value == c->size() - 1;
  if (!last) {
    reduce();
    std::this_thread::sleep_for(milliseconds(30));  // until everything is full
  }
  CHECK_NOTHROW(c->all_gather({&shard}, {all.data()}, Elements(1), DType::f32, label(Channel::gather), gather).wait_host());
  CHECK_NOTHROW(c->barrier(label(Channel::control), control).wait_host());
  if (last) reduce();
  for (Pending& p : pending) CHECK_NOTHROW(p.wait_host());
  CHECK(sum[n - 1] == static_cast<float>(c->size()));
  CHECK(more[0] == static_cast<float>(c->size()));
}

RANK_TEST("B31: a rank that waits leaves the cores to those who compute")(World& world) {
  if (world.size() == 1) return;
  const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), kPatience);
  Stream gather("gather"), reduce("reduce");
  std::vector<float> shard(100'000), full(shard.size() * static_cast<std::size_t>(c->size()));
  const auto both = [&] {
    const auto n = Elements(static_cast<std::int64_t>(shard.size()));
    Pending a = c->all_gather({shard.data()}, {full.data()}, n, DType::f32, label(Channel::gather), gather);
    Pending b = c->barrier(label(Channel::reduce), reduce);
    a.wait_host();
    b.wait_host();
  };
  both();
  if (c->rank().value == c->size() - 1) {
    std::this_thread::sleep_for(milliseconds(800));
    both();
    return;
  }
  // Of this process: over threads all ranks are in it.
  const auto used = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double before = used();
  const auto begin = std::chrono::steady_clock::now();
  both();
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const int here = transport() == "thread" ? c->size() : 1;
  CHECK(waited > 0.4);
  CHECK(used() - before < 0.3 * waited * here);
}

RANK_TEST("life: 200 communicators later, threads, open files and memory are where they were [B43]")(World& world) {
  Stream stream("all");
  std::vector<float> data(5'000);
  const auto round = [&] {
    const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), kPatience);
    c->all_reduce({data.data()}, Elements(5'000), DType::f32, ReduceOp::sum, label(Channel::reduce), stream).wait_host();
    c->barrier({}, stream).wait_host();
  };
  for (int i = 0; i < 20; ++i) round();
  world.communicator().barrier({}, stream).wait_host();
  const std::size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  [[maybe_unused]] const std::int64_t memory = resident_kilobytes();
  world.communicator().barrier({}, stream).wait_host();
  for (int i = 0; i < 200; ++i) round();
  world.communicator().barrier({}, stream).wait_host();
  // Ranks that are threads of this process may still hold the stream of their last split, or count files themselves.
  const std::size_t others = transport() == "thread" ? static_cast<std::size_t>(2 * world.size()) : 0;
  CHECK(entries("/proc/self/fd") <= files + others);
  CHECK(entries("/proc/self/task") <= threads + others);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (!kKeepsFreedMemory) CHECK(resident_kilobytes() - memory < 4'096);
#endif
}

RANK_TEST("life: one rank's communicator goes while work is pending: no rank hangs [B44]")(World& world) {
  for (int round = 0; round < 10; ++round) {
    auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), kPatience);
    {
      Stream stream("gather");
      auto shard = std::make_shared<std::vector<float>>(10'000);
      auto full = std::make_shared<std::vector<float>>(static_cast<std::size_t>(10'000 * world.size()));
      Pending both =
          c->all_gather({shard->data(), shard}, {full->data(), full}, Elements(10'000), DType::f32, label(Channel::gather), stream);
      Pending extra;
      if (world.rank().value == round % world.size()) {
        c.reset();  // before the operation that it has called is over
      } else {
        extra = c->all_gather({shard->data(), shard}, {full->data(), full}, Elements(10'000), DType::f32, label(Channel::gather), stream);
        CHECK_THROWS_AS(extra.wait_host(), CommFailure);
        c.reset();
      }
    }
    Stream stream("control");
    world.communicator().barrier({}, stream).wait_host();
  }
}

RANK_TEST("results do not depend on chunks and delays [B18]")(World& world) {
  // This run's options against a plain loop: the test is registered with several.
  Stream stream("reduce");
  constexpr std::int64_t n = 20'011;
  const auto full = values<float>(world.rank().value, n * world.size());
  std::vector<float> shard(static_cast<std::size_t>(n)), expected(shard);
  for (std::int64_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)] = sum_of<float>(world.size(), world.rank().value * n + i);
  world.communicator()
      .reduce_scatter({full.data()}, {shard.data()}, Elements(n), DType::f32, Fold::start, label(Channel::reduce), stream)
      .wait_host();
  CHECK(same_bits(shard, expected));
}

RANK_TEST("ranks with different options, or impossible ones, are refused on every rank before they share memory")(World& world) {
  if (transport() != "node") return;
  TransportOptions options;
  CHECK_THROWS_AS((void)node_world(world, {.shared_memory = Bytes(-1)}), UsageError);
  CHECK_THROWS_AS((void)node_world(world, {.ranks_per_node = -1}), UsageError);
  if (world.size() == 1) return;
  options.chunk = world.rank() == Rank(0) ? Bytes(1024) : Bytes(2048);
  CHECK_THROWS_WITH_AS((void)node_world(world, options), doctest::Contains("TransportOptions"), RuntimeFailure);
}
