// The smallest use of the library, against an optimizer loop over the same values.
#include <cmath>

#include "tessera/sharded_optimizer.h"
#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Own {
  std::vector<float> w = std::vector<float>(1500), b = std::vector<float>(7), gw = std::vector<float>(1500), gb = std::vector<float>(7);
  std::vector<OwnTensor> tensors() { return {{"w", {500, 3}, w.data(), gw.data()}, {"b", {7}, b.data(), gb.data()}}; }
};

}  // namespace

RANK_TEST("ShardedOptimizer gives every rank the values of one AdamW on the summed gradients, whatever the grouping")(World& world) {
  for (const Elements unit : {Elements(1), Elements(1 << 20)}) {
    Own own;
    for (std::size_t i = 0; i < own.w.size(); ++i) own.w[i] = world.rank() == Rank(0) ? noise(1, 2, i) : 1e30f;  // rank 0's count
    ShardedOptimizer optimizer(world, own.tensors(), {.optimizer = AdamW{.beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f}}, unit);
    std::vector<double> w(own.w.size()), m(own.w.size()), v(own.w.size());
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<double>(noise(1, 2, i));
    for (int s = 1; s <= 4; ++s) {
      for (std::size_t i = 0; i < own.w.size(); ++i)
        own.gw[i] = noise(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(world.rank().value), i);
      const StepResult r = optimizer.step({.learning_rate = 0.01f, .gradient_scale = 1.0 / world.size()});
      CHECK(r.applied);
      for (std::size_t i = 0; i < w.size(); ++i) {
        double g = 0.0;
        for (int k = 0; k < world.size(); ++k)
          g += static_cast<double>(noise(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(k), i));
        g /= world.size();
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.99 * v[i] + 0.01 * g * g;
        w[i] -= 0.01 * 0.1 * w[i];
        w[i] -= 0.01 * (m[i] / (1 - std::pow(0.9, s))) / (std::sqrt(v[i] / (1 - std::pow(0.99, s))) + 1e-8);
      }
    }
    double worst = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) worst = std::max(worst, std::abs(w[i] - static_cast<double>(own.w[i])));
    CHECK(worst < 2e-5);
    CHECK(optimizer.report().peak == optimizer.report().forecast);
  }
}

RANK_TEST("ShardedOptimizer::reload takes what the caller has loaded, from rank 0 to all")(World& world) {
  Own own;
  ShardedOptimizer optimizer(world, own.tensors(), {.optimizer = Sgd{}});
  for (float& v : own.w) v = static_cast<float>(world.rank().value + 5);
  optimizer.reload();
  CHECK(own.w[0] == 5.0f);
  for (float& v : own.gw) v = 1.0f;
  optimizer.step({.learning_rate = 1.0f, .gradient_scale = 1.0 / world.size()});
  CHECK(own.w[7] == doctest::Approx(4.0f));
}

RANK_TEST("ShardedOptimizer refuses tensors without memory and tensors that differ between ranks")(World& world) {
  Own own;
  std::vector<OwnTensor> tensors = own.tensors();
  tensors[0].gradients = nullptr;
  CHECK_THROWS_WITH_AS(ShardedOptimizer(world, tensors), doctest::Contains("'w' has 1500 elements but no memory"), UsageError);
  CHECK_THROWS_AS(ShardedOptimizer(world, {}), UsageError);
  if (world.size() == 1) return;
  tensors = own.tensors();
  if (world.rank() == Rank(1)) tensors[0].shape = {1500};
  CHECK_THROWS_WITH_AS(ShardedOptimizer(world, tensors), doctest::Contains("one model"), UsageError);
}

RANK_TEST("ShardedOptimizer: a step that is refused leaves nothing behind; the corrected one goes through")(World& world) {
  Own own, undisturbed;
  for (Own* o : {&own, &undisturbed})
    for (std::size_t i = 0; i < o->gw.size(); ++i) o->gw[i] = noise(1, static_cast<std::uint64_t>(world.rank().value), i);
  ShardedOptimizer optimizer(world, own.tensors()), reference(world, undisturbed.tensors());
  for (int s = 0; s < 2; ++s) {
    CHECK_THROWS_WITH_AS(optimizer.step({.clip_norm = -1.0}), doctest::Contains("clip_norm"), UsageError);
    const float differs = world.rank() == Rank(0) ? 0.1f : 0.2f;
    if (world.size() > 1) CHECK_THROWS_WITH_AS(optimizer.step({.learning_rate = differs}), doctest::Contains("ranks differ"), UsageError);
    CHECK(optimizer.step({.learning_rate = 0.1f}).step == s + 1);
    reference.step({.learning_rate = 0.1f});
  }
  CHECK(own.w == undisturbed.w);
}

RANK_TEST("ShardedOptimizer: a rank whose tensors cannot be told apart is refused on all ranks, and the world goes on")(World& world) {
  Own own;
  std::vector<OwnTensor> tensors = own.tensors();
  if (world.rank() == Rank(world.size() - 1)) tensors[1].name = tensors[0].name;
  CHECK_THROWS_AS(ShardedOptimizer(world, tensors), UsageError);
  CHECK_NOTHROW(ShardedOptimizer(world, own.tensors()));
}
