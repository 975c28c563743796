// Leases and scopes: what callers do that a plan did not expect, and what must never be read.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr Stage kStages[] = {Stage::none, Stage::moments, Stage::gradients, Stage::parameters};

// What runs inside one leaf is given as a function of (engine, leaf): the same on one rank and on many.
using Leaf = std::function<void(Engine&, std::uint64_t)>;

ToyRun run_leaves(const World& world, const ModelSpec& spec, Options options, const Leaf& body, int leaves, int steps) {
  options.micro_batches = leaves / world.size();
  Engine engine(world, spec, options);
  engine.initialize(fill_toy);
  ToyRun run;
  for (int s = 0; s < steps; ++s) {
    for (int a = 0; a < options.micro_batches; ++a) {
      const MicroBatch leaf = engine.micro_batch();
      body(engine, static_cast<std::uint64_t>(s * leaves + a * world.size() + world.rank().value));
    }
    run.norms.push_back(engine.step({}).gradient_norm);
  }
  run.weights = all_weights(engine);
  return run;
}

void expect_one_rank_bits(World& world, const ModelSpec& spec, const Leaf& body, int steps = 3) {
  for (const int per_rank : {1, 2}) {
    const int leaves = per_rank * world.size();
    std::vector<World> alone = thread_world(1);
    const ToyRun expected = run_leaves(alone.front(), spec, {.stage = Stage::none}, body, leaves, steps);
    for (const Stage stage : kStages) {
      CAPTURE(static_cast<int>(stage));
      CAPTURE(per_rank);
      const ToyRun run = run_leaves(world, spec, {.stage = stage}, body, leaves, steps);
      CHECK(run.norms == expected.norms);
      CHECK(same_bits(run.weights, expected.weights));
    }
  }
}

void add(Engine& engine, UnitId unit, std::uint64_t leaf, float factor = 1.0f) {
  const ParameterLease w = engine.gather(unit, Phase::backward);
  const GradientLease g = engine.gradients(unit);
  for (const TensorSpec& t : engine.spec()[unit].tensors) {
    const std::span<float> v = g[t.name];
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] += factor * noise(leaf, static_cast<std::uint64_t>(unit.value), i) * (1.0f + w[t.name][i]);
  }
}

constexpr std::int64_t kRows = 2069;  // odd sizes, and large enough to be sharded over 7 ranks

ModelSpec three_blocks() {
  ModelSpec spec;
  for (int i = 0; i < 3; ++i) spec.unit("h." + std::to_string(i)).tensor("w", {kRows + i, 5}).tensor("b", {7});
  return spec;
}
const UnitId a{0}, b{1}, c{2};

}  // namespace

RANK_TEST("B8: a unit leased twice in one forward, two forwards before one backward, and a unit used alone give the right values")
(World& world) {
  expect_one_rank_bits(world, three_blocks(), [](Engine& e, std::uint64_t leaf) {
    for (int forward = 0; forward < 2; ++forward)
      for (const UnitId u : {a, b, a, c}) { const ParameterLease w = e.gather(u); }
    for (const UnitId u : {c, b, a}) add(e, u, leaf);
  });
}

RANK_TEST("B8: a unit skipped on all ranks in some leaves, and units in another order than last step, give the right values")
(World& world) {
  expect_one_rank_bits(
      world, three_blocks(),
      [](Engine& e, std::uint64_t leaf) {
        // The step decides, so that all ranks agree: even steps use a, b, c; odd steps c, a.
        const bool odd = e.steps() % 2 == 1;
        for (const UnitId u : odd ? std::vector<UnitId>{c, a} : std::vector<UnitId>{a, b, c}) { const ParameterLease w = e.gather(u); }
        for (const UnitId u : odd ? std::vector<UnitId>{a, c} : std::vector<UnitId>{c, b, a}) add(e, u, leaf);
      },
      4);
}

RANK_TEST("rule 2: a gradient lease beyond the declared uses gives the same bits at every number of ranks, and counts as a miss")
(World& world) {
  expect_one_rank_bits(world, three_blocks(), [](Engine& e, std::uint64_t leaf) {
    for (int use = 0; use < 3; ++use) add(e, b, leaf, 1.0f + static_cast<float>(use));
    add(e, a, leaf);
  });
  Engine engine(world, three_blocks());
  {
    const MicroBatch leaf = engine.micro_batch();
    add(engine, b, 1), add(engine, b, 2);
  }
  CHECK(engine.report().plan_misses == 1);
}

RANK_TEST("B8: what the plan did not expect is counted, and the observed order becomes the next plan")(World& world) {
  ModelSpec spec = three_blocks();
  spec.order({a, b, c});
  Engine engine(world, spec);
  const auto leaf = [&](std::initializer_list<UnitId> forward) {
    const MicroBatch scope = engine.micro_batch();
    for (const UnitId u : forward) { const ParameterLease w = engine.gather(u); }
    for (auto it = std::rbegin(forward); it != std::rend(forward); ++it) add(engine, *it, 1);
  };
  leaf({a, b, c}), engine.step({});
  CHECK(engine.report().plan_misses == 0);
  const StepPlan before = engine.plan();
  leaf({c, b, a}), engine.step({});
  const std::int64_t misses = engine.report().plan_misses;
  CHECK((misses > 0) == gathers_copy(world));
  leaf({c, b, a}), engine.step({});
  CHECK(engine.report().plan_misses == misses);
  CHECK((engine.plan() == before) == !gathers_copy(world));
}

RANK_TEST("B8: evaluation between training steps changes no value and costs no miss in training")(World& world) {
  const Toy toy = toy_model();
  const ToyRun expected = run_toy_alone(toy, {}, world.size(), 2);
  Engine engine(world, toy.spec);
  engine.initialize(fill_toy);
  std::vector<double> norms;
  for (int s = 0; s < 2; ++s) {
    {
      const Evaluation evaluation = engine.evaluation();
      for (const UnitId u : toy.forward) { const ParameterLease w = engine.gather(u); }
    }
    {
      const MicroBatch leaf = engine.micro_batch();
      run_toy_leaf(engine, toy.forward, static_cast<std::uint64_t>(s * world.size() + world.rank().value));
    }
    norms.push_back(engine.step({.clip_norm = 1.0}).gradient_norm);
  }
  CHECK(norms == expected.norms);
  CHECK(engine.report().plan_misses == 0);
}

RANK_TEST("B9: after each step nothing is left gathered")(World& world) {
  const Toy toy = toy_model();
  Engine engine(world, toy.spec);
  for (int s = 0; s < 2; ++s) {
    {
      const MicroBatch leaf = engine.micro_batch();
      run_toy_leaf(engine, toy.forward, 1);
    }
    CHECK(engine.gathered().empty());
    engine.step({});
    CHECK(engine.gathered().empty());
  }
  (void)all_weights(engine);
  CHECK(engine.gathered().empty());
}

RANK_TEST("B10: reading through a lease that has ended, or an unknown tensor, or another element type, is a UsageError that names it")
(World& world) {
  Engine engine(world, three_blocks());
  ParameterLease w = engine.gather(b);
  CHECK_THROWS_WITH_AS((void)w["nothing"], doctest::Contains("unit 'h.1' has no tensor 'nothing'"), UsageError);
  CHECK_THROWS_WITH_AS((void)w.view<double>("w"), doctest::Contains("tensor 'w' holds fp32, not fp64"), UsageError);
  w.close();
  CHECK_THROWS_WITH_AS((void)w["w"], doctest::Contains("tensor 'w' is read through a lease of unit 'h.1' that has ended"), UsageError);
  const MicroBatch leaf = engine.micro_batch();
  GradientLease g = engine.gradients(b);
  g.close();
  CHECK_THROWS_WITH_AS((void)g["w"], doctest::Contains("unit 'h.1' that has ended"), UsageError);
}

RANK_TEST("B10: gradients outside a micro-batch, and a unit that the model does not have, are UsageErrors")(World& world) {
  Engine engine(world, three_blocks());
  CHECK_THROWS_WITH_AS((void)engine.gradients(a), doctest::Contains("gradients of unit 'h.0' outside a micro_batch()"), UsageError);
  CHECK_THROWS_WITH_AS((void)engine.gather(UnitId(3)), doctest::Contains("unit #3"), UsageError);
  CHECK_THROWS_WITH_AS((void)engine.gather(kNoUnit), doctest::Contains("unit #-1"), UsageError);
}

RANK_TEST("B11: weights changed by initialize, set or a step are seen by the next gather")(World& world) {
  for (const Stage stage : kStages) {
    Engine engine(world, three_blocks(), {.stage = stage, .optimizer = Sgd{}});
    const auto constant = [](float x) {
      return [x](const TensorPiece& p) {
        for (float& v : p.values()) v = x;
      };
    };
    const auto all_are = [&](float w, float bias) {
      const ParameterLease lease = engine.gather(b);
      for (const float v : lease["w"])
        if (v != w) return false;
      for (const float v : lease["b"])
        if (v != bias) return false;
      return true;
    };
    engine.initialize(constant(1.0f));
    CHECK(all_are(1.0f, 1.0f));
    engine.set(b, "w", constant(2.0f));
    CHECK(all_are(2.0f, 1.0f));
    {
      const MicroBatch leaf = engine.micro_batch();
      { const ParameterLease w = engine.gather(b); }
      const GradientLease g = engine.gradients(b);
      for (float& v : g["w"]) v += 1.0f / static_cast<float>(world.size());
      for (float& v : g["b"]) v += 2.0f / static_cast<float>(world.size());
    }
    engine.step({.learning_rate = 0.5f});
    if (world.size() != 3 && world.size() != 7) CHECK(all_are(1.5f, 0.0f));  // exact where 1/W is
    engine.set(b, "b", constant(-3.0f));
    if (world.size() != 3 && world.size() != 7) CHECK(all_are(1.5f, -3.0f));
  }
}

RANK_TEST("weights start equal on all ranks whatever the rank's own random state (B6)")(World& world) {
  for (const Stage stage : kStages) {
    Engine engine(world, three_blocks(), {.stage = stage});
    engine.initialize([&](const TensorPiece& p) {
      for (float& v : p.values()) v = static_cast<float>(world.rank().value + 1);
    });
    const ParameterLease w = engine.gather(a);
    std::vector<double> values;
    for (const float v : w["w"]) values.push_back(static_cast<double>(v));
    // The sum over ranks of equal values is W times this rank's, exactly: small integers.
    double own = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) own += values[i] * static_cast<double>(i % 97 + 1);
    CHECK(engine.sum(own) == own * world.size());
  }
}

RANK_TEST("a lease that outlives its micro-batch is a UsageError at once, and all ranks can restart")(World& world) {
  Engine engine(world, three_blocks());
  const auto run = [&] {
    std::optional<ParameterLease> w;
    MicroBatch leaf = engine.micro_batch();
    w.emplace(engine.gather(a));
    leaf.close();
  };
  // UsageError here, or StepInterrupted with that cause where a peer was first.
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("'h.0' is still alive"), Error);
  engine.restart_step();
  {
    const MicroBatch leaf = engine.micro_batch();
    add(engine, a, 1);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST("a lease alive at a step is a UsageError on all ranks, even if one rank alone has it")(World& world) {
  Engine engine(world, three_blocks(), {.stage = Stage::gradients});  // parameters are whole: a lease is local
  {
    const MicroBatch leaf = engine.micro_batch();
    add(engine, a, 1);
  }
  {
    std::optional<ParameterLease> w;
    const int holder = world.size() - 1;
    if (world.rank() == Rank(holder)) w.emplace(engine.gather(b));
    const std::string expected = "rank " + std::to_string(holder) + ": step: a parameter lease of 'h.1' is still alive";
    CHECK_THROWS_WITH_AS(engine.step({}), doctest::Contains(expected.c_str()), UsageError);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST(
    "set of different tensors on different ranks, or of one that a rank does not know, is a UsageError on all ranks and changes nothing")
(World& world) {
  if (world.size() == 1) return;
  const bool odd_one = world.rank() == Rank(world.size() - 1);
  const auto seven = [](const TensorPiece& p) {
    for (float& v : p.values()) v = 7.0f;
  };
  for (const Stage stage : kStages) {
    Engine engine(world, three_blocks(), {.stage = stage});
    CHECK_THROWS_WITH_AS(engine.set(odd_one ? a : b, "w", seven), doctest::Contains("sets one tensor"), UsageError);
    CHECK_THROWS_WITH_AS(engine.set(a, odd_one ? "w" : "b", seven), doctest::Contains("sets one tensor"), UsageError);
    CHECK_THROWS_WITH_AS(engine.set(a, odd_one ? "typo" : "w", seven), doctest::Contains("has no tensor 'typo'"), UsageError);
    const std::vector<float> weights = all_weights(engine);
    CHECK(std::count(weights.begin(), weights.end(), 0.0f) == static_cast<std::ptrdiff_t>(weights.size()));
    engine.set(a, "w", seven);
    CHECK(all_weights(engine)[0] == 7.0f);
  }
}

RANK_TEST("a fill that throws on one rank is a UsageError on all ranks at once")(World& world) {
  for (const Stage stage : kStages) {
    Engine engine(world, three_blocks(), {.stage = stage});
    const auto fill = [&](const TensorPiece& p) {
      if (world.rank() == Rank(0)) throw std::runtime_error("no such file");  // rank 0 owns some of every tensor
      for (float& v : p.values()) v = 1.0f;
    };
    CHECK_THROWS_WITH_AS(engine.initialize(fill), doctest::Contains("the fill threw: no such file"), UsageError);
    CHECK_NOTHROW(engine.initialize(fill_toy));
  }
}

RANK_TEST("hyperparameters that no optimizer can have are refused at set-up")(World& world) {
  CHECK_THROWS_AS(Engine(world, three_blocks(), {.optimizer = AdamW{.beta1 = 1.0f}}), UsageError);
  CHECK_THROWS_AS(Engine(world, three_blocks(), {.optimizer = Sgd{.nesterov = true}}), UsageError);
}

RANK_TEST("micro-batches beyond Options::micro_batches, a second open scope, and a step without micro-batch are UsageErrors")
(World& world) {
  Engine engine(world, three_blocks());
  CHECK_THROWS_WITH_AS(engine.step({}), doctest::Contains("no micro-batch was run"), UsageError);
  {
    const MicroBatch leaf = engine.micro_batch();
    CHECK_THROWS_WITH_AS((void)engine.micro_batch(), doctest::Contains("a micro-batch is still open"), UsageError);
    CHECK_THROWS_WITH_AS((void)engine.evaluation(), doctest::Contains("a micro-batch is still open"), UsageError);
    add(engine, a, 1);
  }
  CHECK_THROWS_WITH_AS((void)engine.micro_batch(), doctest::Contains("Options::micro_batches is 1"), UsageError);
  CHECK(engine.step({}).applied);
}

RANK_TEST("B13: leases of more units than there are slots are a UsageError that names the live ones; nothing is counted")(World& world) {
  Engine engine(world, three_blocks(), {.parameter_slots = 2});
  if (!gathers_copy(world)) return;  // every unit is there whole
  const ParameterLease first = engine.gather(a);
  {
    const ParameterLease second = engine.gather(b);
    const ParameterLease again = engine.gather(a);  // the same unit needs no slot of its own
    CHECK_THROWS_WITH_AS((void)engine.gather(c), doctest::Contains("'h.0', 'h.1'"), UsageError);
  }
  CHECK_NOTHROW((void)engine.gather(c));
}

RANK_TEST("a prefetched unit that nobody leases is evicted for a lease")(World& world) {
  ModelSpec spec = three_blocks();
  spec.order({a, b, c});
  Engine engine(world, spec);
  engine.initialize(fill_toy);
  const std::vector<float> before = all_weights(engine);
  const MicroBatch leaf = engine.micro_batch();  // prefetches a
  const ParameterLease first = engine.gather(b);
  const ParameterLease second = engine.gather(c);
  CHECK(second["w"].size() == (kRows + 2) * 5);
  CHECK(first["b"][0] == before[kRows * 5 + 7 + (kRows + 1) * 5]);
}

RANK_TEST("B43: 200 rounds of gathers, steps and refused calls leave memory where it was")(World& world) {
  const Toy toy = toy_model();
  Engine engine(world, toy.spec);
  const MemoryBytes before = engine.memory();
  for (int round = 0; round < 200; ++round) {
    if (round % 20 == 0) {
      const MicroBatch leaf = engine.micro_batch();
      run_toy_leaf(engine, toy.forward, static_cast<std::uint64_t>(round));
    }
    if (round % 20 == 1) engine.step({});
    (void)engine.gather(toy.forward[static_cast<std::size_t>(round) % toy.forward.size()]);
    CHECK_THROWS_AS((void)engine.gather(UnitId(99)), UsageError);
  }
  CHECK(engine.memory() == before);
}

RANK_TEST("B44: two engines in one process, and engines made and destroyed repeatedly, do not disturb each other")(World& world) {
  const Toy toy = toy_model();
  const ToyRun expected = run_toy_alone(toy, {}, world.size(), 2);
  Engine other(world, three_blocks());
  for (int round = 0; round < 3; ++round) {
    {
      const MicroBatch leaf = other.micro_batch();
      add(other, a, 3);
      const ToyRun run = run_toy(world, toy, {}, world.size(), 2);  // in the middle of the other's leaf
      CHECK(same_bits(run.weights, expected.weights));
    }
    CHECK(other.step({}).applied);
  }
}

namespace {

/// Counts what has ended, by verb and unit; lets the caller wait for it.
class Ended : public Observer {
 public:
  void operation(const OperationRecord& record) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++ended_[{record.verb, record.label.unit.value}];
    changed_.notify_all();
  }
  bool wait_for(Verb verb, UnitId unit) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ended_[{verb, unit.value}] > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Verb, int>, int> ended_;
};

}  // namespace

RANK_TEST("overlap: the next unit arrives, and the last one's gradients are reduced, while the caller is still in a lease")(World& world) {
  if (world.size() == 1) return;
  ModelSpec spec;
  std::vector<UnitId> units;
  for (int i = 0; i < 5; ++i) units.push_back(spec.unit("h." + std::to_string(i)).tensor("weight", {64, 64}));
  spec.order(units);
  const auto ended = std::make_shared<Ended>();
  Engine engine(world, spec, {.observer = ended});
  engine.initialize(fill_toy);
  const bool gathers = !world.communicator().full_flat_addressable();  // else a lease views the shards where they lie
  const MicroBatch leaf = engine.micro_batch();
  for (std::size_t i = 0; i < units.size(); ++i) {
    const ParameterLease w = engine.gather(units[i]);
    if (gathers && i + 1 < units.size()) CHECK(ended->wait_for(Verb::all_gather, units[i + 1]));
  }
  for (std::size_t i = units.size(); i-- > 0;) {
    const ParameterLease w = engine.gather(units[i], Phase::backward);
    const GradientLease g = engine.gradients(units[i]);
    (void)g["weight"];
    if (i + 1 < units.size()) CHECK(ended->wait_for(Verb::reduce_scatter, units[i + 1]));
  }
}
