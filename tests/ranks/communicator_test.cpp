// What each verb leaves in memory, for every element type and awkward size.
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ranks/communicator_values.h"
#include "tests/ranks/rank_test.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::int64_t kSizes[] = {0, 1, 3, 5, 7, 1023, 4097};

/// Calls check(TypeTag<T>, dtype, elements) for all of them.
template <class Check>
void for_all(Check check) {
  for (const DType dtype : kAllTypes)
    for (const std::int64_t n : kSizes) core::with_type(dtype, [&](auto tag) { check(tag, dtype, n); });
}

}  // namespace

RANK_TEST("all_gather: every rank ends with every shard, in rank order")(World& world) {
  Stream stream("gather");
  for_all([&](auto tag, DType dtype, std::int64_t n) {
    using T = typename decltype(tag)::type;
    std::vector<T> expected;
    for (int r = 0; r < world.size(); ++r) {
      const auto part = values<T>(r, n);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const auto shard = values<T>(world.rank().value, n);
    std::vector<T> full(expected.size());
    world.communicator().all_gather({shard.data()}, {full.data()}, Elements(n), dtype, label(Channel::gather), stream).wait_host();
    CHECK(same_bits(full, expected));

    std::vector<T> in_place(expected.size());
    T* own = in_place.data() + world.rank().value * n;
    std::copy(shard.begin(), shard.end(), own);
    world.communicator().all_gather({own}, {in_place.data()}, Elements(n), dtype, label(Channel::gather), stream).wait_host();
    CHECK(same_bits(in_place, expected));
  });
}

RANK_TEST("reduce_scatter: the bits of a plain loop over the ranks in order")(World& world) {
  Stream stream("reduce");
  const int ranks = world.size();
  for_all([&](auto tag, DType dtype, std::int64_t n) {
    using T = typename decltype(tag)::type;
    using A = typename core::SumType<T>::type;
    const std::int64_t first = world.rank().value * n;
    std::vector<T> expected(static_cast<std::size_t>(n)), onward(expected);
    for (std::int64_t i = 0; i < n; ++i) {
      expected[static_cast<std::size_t>(i)] = static_cast<T>(sum_of<T>(ranks, first + i));
      onward[static_cast<std::size_t>(i)] =
          static_cast<T>(sum_of<T>(ranks, first + i, static_cast<A>(expected[static_cast<std::size_t>(i)])));
    }
    auto full = values<T>(world.rank().value, n * ranks);
    std::vector<T> shard(static_cast<std::size_t>(n), value<T>(99, 1));
    Communicator& c = world.communicator();
    c.reduce_scatter({full.data()}, {shard.data()}, Elements(n), dtype, Fold::start, label(Channel::reduce), stream).wait_host();
    CHECK(same_bits(shard, expected));
    c.reduce_scatter({full.data()}, {shard.data()}, Elements(n), dtype, Fold::onward, label(Channel::reduce), stream).wait_host();
    CHECK(same_bits(shard, onward));

    T* own = full.data() + first;
    c.reduce_scatter({full.data()}, {own}, Elements(n), dtype, Fold::start, label(Channel::reduce), stream).wait_host();
    CHECK(same_bits(std::vector<T>(own, own + n), expected));
  });
}

RANK_TEST("reduce_scatter: 16-bit contributions go onward in fp32 without rounding in between")(World& world) {
  Stream stream("reduce");
  const auto check = [&](auto tag, DType dtype) {
    using T = typename decltype(tag)::type;
    for (const std::int64_t n : kSizes) {
      const std::int64_t first = world.rank().value * n;
      std::vector<float> shard(static_cast<std::size_t>(n), 99.0f), expected(shard);
      for (std::uint64_t leaf = 0; leaf < 3; ++leaf) {
        const auto full = values<T>(world.rank().value, n * world.size(), leaf);
        const Fold fold = leaf == 0 ? Fold::start : Fold::onward;
        world.communicator()
            .reduce_scatter({full.data()}, {shard.data()}, Elements(n), dtype, fold, label(Channel::reduce), stream, DType::f32)
            .wait_host();
        for (std::int64_t i = 0; i < n; ++i) {
          float& e = expected[static_cast<std::size_t>(i)];
          e = sum_of<T>(world.size(), first + i, leaf == 0 ? 0.0f : e, leaf);
        }
      }
      CHECK(same_bits(shard, expected));
    }
  };
  check(core::TypeTag<bf16>{}, DType::bf16);
  check(core::TypeTag<f16>{}, DType::f16);
}

RANK_TEST("reduce_scatter: starts from +0, at one rank too, so that a sum of -0 is +0")(World& world) {
  Stream stream("reduce");
  std::vector<float> full(static_cast<std::size_t>(5 * world.size()), -0.0f), shard(5, 1.0f);
  world.communicator()
      .reduce_scatter({full.data()}, {shard.data()}, Elements(5), DType::f32, Fold::start, label(Channel::reduce), stream)
      .wait_host();
  for (const float x : shard) CHECK((x == 0 && !std::signbit(x)));
  std::vector<float> onward(5, -0.0f);
  world.communicator()
      .reduce_scatter({full.data()}, {onward.data()}, Elements(5), DType::f32, Fold::onward, label(Channel::reduce), stream)
      .wait_host();
  for (const float x : onward) CHECK((x == 0 && std::signbit(x)));
  std::vector<float> data(5, -0.0f);
  world.communicator().all_reduce({data.data()}, Elements(5), DType::f32, ReduceOp::sum, label(Channel::reduce), stream).wait_host();
  for (const float x : data) CHECK((x == 0 && !std::signbit(x)));
}

RANK_TEST("all_reduce: the sum is the sum of a plain loop, on every rank")(World& world) {
  Stream stream("reduce");
  for_all([&](auto tag, DType dtype, std::int64_t n) {
    using T = typename decltype(tag)::type;
    std::vector<T> expected(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)] = static_cast<T>(sum_of<T>(world.size(), i));
    auto data = values<T>(world.rank().value, n);
    world.communicator().all_reduce({data.data()}, Elements(n), dtype, ReduceOp::sum, label(Channel::reduce), stream).wait_host();
    CHECK(same_bits(data, expected));
  });
}

RANK_TEST("all_reduce: largest and smallest of every rank's values")(World& world) {
  Stream stream("control");
  for_all([&](auto tag, DType dtype, std::int64_t n) {
    using T = typename decltype(tag)::type;
    using A = typename core::SumType<T>::type;
    std::vector<T> largest = values<T>(0, n), smallest = largest;
    for (int r = 1; r < world.size(); ++r)
      for (std::int64_t i = 0; i < n; ++i) {
        const T x = value<T>(r, i);
        T& big = largest[static_cast<std::size_t>(i)];
        T& small = smallest[static_cast<std::size_t>(i)];
        if (static_cast<A>(x) > static_cast<A>(big)) big = x;
        if (static_cast<A>(x) < static_cast<A>(small)) small = x;
      }
    auto data = values<T>(world.rank().value, n);
    world.communicator().all_reduce({data.data()}, Elements(n), dtype, ReduceOp::max, label(Channel::control), stream).wait_host();
    CHECK(same_bits(data, largest));
    data = values<T>(world.rank().value, n);
    world.communicator().all_reduce({data.data()}, Elements(n), dtype, ReduceOp::min, label(Channel::control), stream).wait_host();
    CHECK(same_bits(data, smallest));
  });
}

RANK_TEST("all_reduce: NaN wins a maximum and a minimum, whichever rank has it")(World& world) {
  Stream stream("control");
  for (int who = 0; who < world.size(); ++who)
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      std::vector<float> data(17, static_cast<float>(world.rank().value));
      if (world.rank().value == who) data[16] = std::numeric_limits<float>::quiet_NaN();
      world.communicator().all_reduce({data.data()}, Elements(17), DType::f32, op, label(Channel::control), stream).wait_host();
      CHECK(std::isnan(data[16]));
      CHECK(data[15] == static_cast<float>(op == ReduceOp::max ? world.size() - 1 : 0));
    }
}

RANK_TEST("broadcast: every rank has the root's bits, whoever is the root")(World& world) {
  Stream stream("control");
  for_all([&](auto tag, DType dtype, std::int64_t n) {
    using T = typename decltype(tag)::type;
    for (int root = 0; root < world.size(); ++root) {
      auto data = values<T>(world.rank().value, n);
      world.communicator().broadcast({data.data()}, Elements(n), dtype, Rank(root), label(Channel::control), stream).wait_host();
      CHECK(same_bits(data, values<T>(root, n)));
    }
  });
}

RANK_TEST("sum is a sum: rank r contributes r + 1, all ranks get W(W+1)/2 [B17]")(World& world) {
  Stream stream("reduce");
  const int w = world.size();
  const auto expected = static_cast<float>(w * (w + 1) / 2);
  std::vector<float> full(static_cast<std::size_t>(7 * w), static_cast<float>(world.rank().value + 1)), shard(7);
  Communicator& c = world.communicator();
  c.reduce_scatter({full.data()}, {shard.data()}, Elements(7), DType::f32, Fold::start, label(Channel::reduce), stream).wait_host();
  for (const float x : shard) CHECK(x == expected);
  c.all_reduce({full.data()}, Elements(7 * w), DType::f32, ReduceOp::sum, label(Channel::reduce), stream).wait_host();
  for (const float x : full) CHECK(x == expected);
}

RANK_TEST("barrier: nobody is through before the last rank has come")(World& world) {
  Stream stream("control");
  for (int last = 0; last < world.size(); ++last) {
    auto pending = Pending();
    if (world.rank().value != last) {
      pending = world.communicator().barrier(label(Channel::control), stream);
      CHECK_FALSE(pending.done());
    }
    // The last one comes only after a sign that travels on another channel, from a rank that is in the barrier.
    Stream other("gather");
    const std::int64_t sign = 1;
    std::vector<std::int64_t> signs(static_cast<std::size_t>(world.size()));
    world.communicator().all_gather({&sign}, {signs.data()}, Elements(1), DType::i64, label(Channel::gather), other).wait_host();
    if (world.rank().value == last) pending = world.communicator().barrier(label(Channel::control), stream);
    pending.wait_host();
  }
}

RANK_TEST("traffic: payload and control are counted to the byte")(World& world) {
  Stream stream("all");
  const std::int64_t w = world.size();
  Communicator& c = world.communicator();
  const Traffic before = c.traffic();
  std::vector<float> full(static_cast<std::size_t>(1024 * w)), shard(1024);
  c.all_gather({shard.data()}, {full.data()}, Elements(1024), DType::f32, label(Channel::gather), stream).wait_host();
  c.reduce_scatter({full.data()}, {shard.data()}, Elements(1024), DType::f32, Fold::start, label(Channel::reduce), stream).wait_host();
  const Traffic after = c.traffic();
  CHECK(after.payload_sent - before.payload_sent == Bytes(2 * (w - 1) * 4096));
  CHECK(after.payload_received - before.payload_received == Bytes(2 * (w - 1) * 4096));
  std::vector<double> data(3);
  c.all_reduce({data.data()}, Elements(3), DType::f64, ReduceOp::sum, label(Channel::control), stream).wait_host();
  CHECK(c.traffic().payload_sent == after.payload_sent);
  if (w > 1) CHECK(c.traffic().control_sent > after.control_sent);
}

RANK_TEST("a full flat is there without a copy on one rank alone, and where ranks share memory")(World& world) {
  CHECK(world.communicator().full_flat_addressable() == (world.size() == 1 || transport() == "node"));
  CHECK(world.communicator().transport() == transport());
  for (int r = 0; r < world.size(); ++r) CHECK_FALSE(world.communicator().host_of(Rank(r)).empty());
  CHECK_THROWS_AS((void)world.communicator().host_of(Rank(world.size())), UsageError);
}
