// Sums over hosts in the hierarchical transport's own order. Four ranks that pretend to be two on each of two hosts.
#include <bit>
#include <cstdint>
#include <vector>

#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

float contribution(int rank, std::int64_t element) {
  return noise(7, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(element));
}

}  // namespace

RANK_TEST("natural order: each host's ranks are added from +0, then the hosts' sums in their order, whatever the size and the chunk")
(World& world) {
  REQUIRE(world.size() == 4);
  Stream stream("reduce");
  std::int64_t differs_from_leaf_order = 0;
  for (const std::int64_t per_rank : {1, 7, 1000, 300'001}) {
    for (const Fold fold : {Fold::start, Fold::onward}) {
      CAPTURE(per_rank);
      std::vector<float> full(static_cast<std::size_t>(4 * per_rank)), shard(static_cast<std::size_t>(per_rank), 0.25f);
      for (std::size_t i = 0; i < full.size(); ++i) full[i] = contribution(world.rank().value, static_cast<std::int64_t>(i));
      world.communicator()
          .reduce_scatter({full.data()}, {shard.data()}, Elements(per_rank), DType::f32, fold, {.channel = Channel::reduce}, stream)
          .wait_host();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < per_rank; ++i) {
        const std::int64_t e = world.rank().value * per_rank + i;
        const auto c = [&](int rank) { return contribution(rank, e); };
        const float start = fold == Fold::start ? 0.0f : 0.25f;
        const float first = (0.0f + c(0)) + c(1), second = (0.0f + c(2)) + c(3);
        const float expected = (start + first) + second, leaf_order = (((start + c(0)) + c(1)) + c(2)) + c(3);
        if (std::bit_cast<std::uint32_t>(shard[static_cast<std::size_t>(i)]) != std::bit_cast<std::uint32_t>(expected)) ++wrong;
        if (expected != leaf_order) ++differs_from_leaf_order;
      }
      CHECK(wrong == 0);
    }
  }
  CHECK(differs_from_leaf_order > 0);  // or the check above would hold for any order
}

RANK_TEST("natural order: training gives the same bits each time")(World& world) {
  const Toy toy = toy_model();
  const ToyRun first = run_toy(world, toy, {}, world.size(), 2);
  CHECK(same_bits(run_toy(world, toy, {}, world.size(), 2).weights, first.weights));
}
