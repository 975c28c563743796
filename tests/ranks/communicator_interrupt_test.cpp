// An interrupted step: every rank is told, nothing of it arrives later, and the next one starts from number 0.
#include <thread>

#include "tests/ranks/communicator_values.h"
#include "tests/ranks/rank_test.h"

using namespace tessera;
using namespace tessera::testing;
using std::chrono::milliseconds;

namespace {

constexpr TransportOptions kPatient{.chunk = Bytes(4096), .deadline = milliseconds(20'000)};
constexpr TransportOptions kDelayed{.chunk = Bytes(1024), .deadline = milliseconds(20'000), .random_delay = std::chrono::microseconds(500)};
constexpr TransportOptions kQuick{.deadline = milliseconds(1'000)};

std::shared_ptr<Communicator> own(World& world, milliseconds deadline = milliseconds(20'000)) {
  return world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), deadline);
}

/// One round of all channels, checked.
void work(Communicator& c, std::uint64_t salt) {
  Stream gather("gather"), reduce("reduce"), control("control");
  constexpr std::int64_t n = 3001;
  const auto shard = values<float>(c.rank().value, n, salt);
  const auto contribution = values<float>(c.rank().value, n * c.size(), salt + 1);
  std::vector<float> full(static_cast<std::size_t>(n * c.size())), sum(static_cast<std::size_t>(n));
  std::int64_t one = 1;
  Pending a = c.all_gather({shard.data()}, {full.data()}, Elements(n), DType::f32, label(Channel::gather), gather);
  Pending b = c.reduce_scatter({contribution.data()}, {sum.data()}, Elements(n), DType::f32, Fold::start, label(Channel::reduce), reduce);
  Pending d = c.all_reduce({&one}, Elements(1), DType::i64, ReduceOp::sum, label(Channel::control), control);
  a.wait_host();
  b.wait_host();
  d.wait_host();
  CHECK(one == c.size());
  bool right = true;
  for (int r = 0; r < c.size(); ++r)
    for (std::int64_t i = 0; i < n; ++i) right = right && full[static_cast<std::size_t>(r * n + i)] == value<float>(r, i, salt);
  for (std::int64_t i = 0; i < n; ++i)
    right = right && sum[static_cast<std::size_t>(i)] == sum_of<float>(c.size(), c.rank().value * n + i, 0.0f, salt + 1);
  CHECK(right);
}

/// Memory that an interrupted operation may use until it is over: owned by it.
Region owned(std::size_t floats) {
  auto memory = std::make_shared<std::vector<float>>(floats);
  return {memory->data(), memory};
}

void interrupt_in_the_middle(World& world) {
  const auto c = own(world);
  for (int round = 0; round < 20; ++round) {
    work(*c, static_cast<std::uint64_t>(round));
    meet(world);
    const int who = round % world.size();
    {
      Stream gather("gather"), reduce("reduce"), control("control");
      std::vector<Pending> pending;
      const auto n = static_cast<std::size_t>(2000 + 700 * round);
      const auto w = static_cast<std::size_t>(world.size());
      for (int i = 0; i < 3; ++i) {
        // The interrupter stays away from the last operations of each channel.
        if (world.rank().value == who && i == 2) break;
        const Region full = owned(n * w), sum = owned(n * w);
        const Region shard = owned(n);
        pending.push_back(c->all_gather({shard.data, shard.owner}, full, Elements(static_cast<std::int64_t>(n)), DType::f32,
                                        label(Channel::gather), gather));
        pending.push_back(c->reduce_scatter({sum.data, sum.owner}, owned(n), Elements(static_cast<std::int64_t>(n)), DType::f32,
                                            Fold::start, label(Channel::reduce), reduce));
        pending.push_back(c->barrier(label(Channel::control), control));
      }
      if (world.rank().value == who) c->interrupt("round " + std::to_string(round));
      int told = 0;
      for (Pending& p : pending) {
        try {
          p.wait_host();
        } catch (const StepInterrupted& e) {
          ++told;
          CHECK(e.rank == Rank(who));
          CHECK(e.cause == "round " + std::to_string(round));
        }
      }
      if (world.rank().value != who) CHECK(told >= 3);
      CHECK(c->interrupted());
      Stream later("control");
      CHECK_THROWS_AS(c->barrier(label(Channel::control), later).wait_host(), StepInterrupted);
    }
    c->resume();
    CHECK_FALSE(c->interrupted());
    for (const Channel channel : {Channel::gather, Channel::reduce, Channel::control}) CHECK(c->submitted(channel) == 0);
  }
  work(*c, 99);
}

}  // namespace

RANK_TEST_WITH("interrupt: with operations in flight on all channels, again and again", {kPatient})(World& world) {
  interrupt_in_the_middle(world);
}

RANK_TEST_WITH("interrupt: the same with random delays and small chunks", {kDelayed})(World& world) { interrupt_in_the_middle(world); }

RANK_TEST_WITH("interrupt: an operation ends alike on all ranks, well where all had begun it, and its data is right then", {kDelayed})
(World& world) {
  const auto c = own(world);
  Stream beside("beside");
  for (int round = 0; round < 30; ++round) {
    constexpr int kOperations = 12;
    constexpr std::int64_t n = 1500;
    std::vector<std::int64_t> well(2 * kOperations);
    {
      Stream gather("gather"), reduce("reduce");
      std::vector<Pending> pending;
      std::vector<Region> full, sum;
      const auto w = static_cast<std::size_t>(world.size());
      const int who = round % world.size();
      // One rank, or two at once, throw when some operations are over, others under way, and others not begun.
      const bool interrupts = world.rank().value == who || (round % 3 == 0 && world.rank().value == (who + 1) % world.size());
      for (int i = 0; i < kOperations; ++i) {
        const Region shard = owned(n), contribution = owned(n * w);
        for (std::int64_t k = 0; k < n; ++k) static_cast<float*>(shard.data)[k] = value<float>(c->rank().value, k, 1);
        for (std::int64_t k = 0; k < n * c->size(); ++k) static_cast<float*>(contribution.data)[k] = value<float>(c->rank().value, k, 2);
        full.push_back(owned(n * w));
        sum.push_back(owned(n));
        pending.push_back(c->all_gather({shard.data, shard.owner}, full.back(), Elements(n), DType::f32, label(Channel::gather), gather));
        pending.push_back(c->reduce_scatter({contribution.data, contribution.owner}, sum.back(), Elements(n), DType::f32, Fold::start,
                                            label(Channel::reduce), reduce));
        if (interrupts && i == round % kOperations) {
          while (round % 2 == 0 && !pending.back().done() && !c->interrupted()) std::this_thread::yield();
          c->interrupt("from rank " + std::to_string(world.rank().value));
        }
      }
      for (std::size_t i = 0; i < pending.size(); ++i) {
        try {
          pending[i].wait_host();
          well[i] = 1;
        } catch (const StepInterrupted&) {}
      }
      bool right = true;
      for (std::size_t i = 0; i < pending.size(); ++i) {
        if (well[i] == 0) continue;
        const auto* data = static_cast<const float*>((i % 2 == 0 ? full : sum)[i / 2].data);
        for (std::int64_t k = 0; i % 2 == 0 && k < n * c->size(); ++k)
          right = right && data[k] == value<float>(static_cast<int>(k / n), k % n, 1);
        for (std::int64_t k = 0; i % 2 == 1 && k < n; ++k)
          right = right && data[k] == sum_of<float>(c->size(), c->rank().value * n + k, 0.0f, 2);
      }
      CHECK(right);
    }
    std::vector<std::int64_t> most = well, least = well;
    world.communicator().all_reduce({most.data()}, Elements(2 * kOperations), DType::i64, ReduceOp::max, {}, beside).wait_host();
    world.communicator().all_reduce({least.data()}, Elements(2 * kOperations), DType::i64, ReduceOp::min, {}, beside).wait_host();
    CAPTURE(round);
    CHECK(most == well);
    CHECK(least == well);
    c->resume();
  }
}

RANK_TEST_WITH("interrupt: several ranks at once are one interruption", {kPatient})(World& world) {
  const auto c = own(world);
  for (int round = 0; round < 10; ++round) {
    c->interrupt("from everyone");
    CHECK(c->interrupted());
    c->resume();
    work(*c, static_cast<std::uint64_t>(round));
    meet(world);
  }
}

RANK_TEST_WITH("interrupt: what was pending and never waited for is over before resume returns", {kPatient})(World& world) {
  const auto c = own(world);
  Stream stream("gather");
  for (int round = 0; round < 10; ++round) {
    const Region full = owned(static_cast<std::size_t>(50'000 * world.size()));
    const Region shard = owned(50'000);
    Pending p = c->all_gather({shard.data, shard.owner}, full, Elements(50'000), DType::f32, label(Channel::gather), stream);
    if (round % world.size() == world.rank().value) c->interrupt("now");
    c->resume();
    CHECK(p.done());
    // Nothing of the old epoch writes any more.
    auto* data = static_cast<float*>(full.data);
    std::fill_n(data, 50'000 * world.size(), 7.0f);
    work(*c, static_cast<std::uint64_t>(round));
    CHECK(std::all_of(data, data + 50'000 * world.size(), [](float x) { return x == 7.0f; }));
    meet(world);
  }
}

RANK_TEST_WITH("interrupt: a communicator beside it goes on", {kPatient})(World& world) {
  const auto a = own(world), b = own(world);
  if (world.rank().value == 0) a->interrupt("only here");
  work(*b, 1);
  CHECK_FALSE(b->interrupted());
  a->resume();
  work(*a, 2);
  work(*b, 3);
}

RANK_TEST_WITH("resume: fails by name where a rank has left instead", {kPatient})(World& world) {
  if (world.size() == 1) return;
  auto c = own(world);
  const bool leaves = world.rank().value == world.size() - 1;
  if (leaves) {
    c->interrupt("giving up");
    c.reset();
  } else {
    Stream stream("control");
    // Interrupted, or told that a rank has left: whichever is seen first.
    CHECK_THROWS_AS(c->barrier({}, stream).wait_host(), RuntimeFailure);
    try {
      c->resume();
      FAIL("resumed without a rank");
    } catch (const CommFailure& e) { CHECK(e.culprits == std::vector<Rank>{Rank(world.size() - 1)}); }
  }
  Stream stream("control");
  world.communicator().barrier({}, stream).wait_host();
}

RANK_TEST_WITH("resume: fails by name where a rank does not come", {kQuick})(World& world) {
  if (world.size() == 1) return;
  const auto meeting = own(world, milliseconds(30'000));
  const auto c = own(world, milliseconds(600));
  c->interrupt("now");
  if (world.rank().value != world.size() - 1) {
    try {
      c->resume();
      FAIL("resumed without a rank");
    } catch (const CommFailure& e) {
      CHECK(e.culprits == std::vector<Rank>{Rank(world.size() - 1)});
      CHECK(e.verb == "resume");
    }
  }
  Stream stream("control");
  meeting->barrier({}, stream).wait_host();
}
