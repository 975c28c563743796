// When something goes wrong on one rank: every other rank learns of it within the deadline, by name, and where the program wants to go on
// it can.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

using namespace tessera;
using namespace tessera::testing;
using std::chrono::milliseconds;

namespace {

constexpr Stage kStages[] = {Stage::none, Stage::moments, Stage::gradients, Stage::parameters};

Rank last(const World& world) { return Rank(world.size() - 1); }

// Where in a leaf the exception is thrown.
enum class Place { first_forward, last_forward, first_backward, inside_gradients, after_all };

void leaf_with_exception(Engine& engine, const Toy& toy, std::uint64_t number, bool throws, Place place) {
  const MicroBatch leaf = engine.micro_batch();
  const auto here = [&](Place p) {
    if (throws && p == place) throw std::runtime_error("the caller's own");
  };
  for (std::size_t i = 0; i < toy.forward.size(); ++i) {
    const ParameterLease w = engine.gather(toy.forward[i]);
    if (i == 0) here(Place::first_forward);
    if (i + 1 == toy.forward.size()) here(Place::last_forward);
  }
  for (auto it = toy.forward.rbegin(); it != toy.forward.rend(); ++it) {
    const ParameterLease w = engine.gather(*it, Phase::backward);
    here(Place::first_backward);
    const GradientLease g = engine.gradients(*it);
    for (const TensorSpec& t : engine.spec()[*it].tensors)
      for (float& v : g[t.name]) v += noise(number, static_cast<std::uint64_t>(it->value), 1);
    if (it != toy.forward.rbegin()) here(Place::inside_gradients);
  }
  here(Place::after_all);
}

}  // namespace

RANK_TEST(
    "B9: after an exception in one rank's forward or backward the others get StepInterrupted naming it, and after restart_step the bits "
    "are those of the undisturbed run")
(World& world) {
  const Toy toy = toy_model();
  for (const Stage stage : kStages) {
    std::vector<float> expected;
    {
      Engine engine(world, toy.spec, {.stage = stage});
      engine.initialize(fill_toy);
      for (int s = 0; s < 2; ++s) {
        leaf_with_exception(engine, toy, static_cast<std::uint64_t>(s * world.size() + world.rank().value), false, Place::after_all);
        engine.step({});
      }
      expected = all_weights(engine);
    }
    Engine engine(world, toy.spec, {.stage = stage});
    engine.initialize(fill_toy);
    int s = 0;
    for (const Place place :
         {Place::first_forward, Place::last_forward, Place::first_backward, Place::inside_gradients, Place::after_all}) {
      CAPTURE(static_cast<int>(stage));
      CAPTURE(static_cast<int>(place));
      const bool throws = world.rank() == last(world);
      std::string message;
      bool interrupted = false;
      try {
        leaf_with_exception(engine, toy, 77, throws, place);
        engine.step({});
      } catch (const StepInterrupted& e) {
        interrupted = true;
        message = e.what();
        CHECK(e.rank == last(world));
      } catch (const std::runtime_error& e) { message = e.what(); }
      CAPTURE(message);
      CHECK(interrupted == !throws);
      CHECK(message.find(throws ? "the caller's own" : "rank ") != std::string::npos);
      // Whatever is called now says the same, on every rank.
      CHECK_THROWS_AS((void)engine.micro_batch(), StepInterrupted);
      CHECK(engine.gathered().empty());
      engine.restart_step();
      if (s < 2) {
        leaf_with_exception(engine, toy, static_cast<std::uint64_t>(s * world.size() + world.rank().value), false, Place::after_all);
        CHECK(engine.step({}).step == ++s);
      }
    }
    CHECK(same_bits(all_weights(engine), expected));
  }
}

RANK_TEST("an exception that crosses a gradient lease spoils the leaf even if it is caught inside")(World& world) {
  const Toy toy = toy_model();
  Engine engine(world, toy.spec);
  const auto spoiled = [&] {
    MicroBatch leaf = engine.micro_batch();
    try {
      const GradientLease g = engine.gradients(toy.forward[1]);
      throw std::runtime_error("caught inside");
    } catch (const std::runtime_error&) {}
    leaf.close();
  };
  // UsageError here, or StepInterrupted with that cause where a peer was first.
  CHECK_THROWS_WITH_AS(spoiled(), doctest::Contains("crossed a gradient lease"), Error);
  engine.restart_step();
  {
    const MicroBatch leaf = engine.micro_batch();
    run_toy_leaf(engine, toy.forward, 1);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST_WITH("an exception right after the engine's construction does not reach a rank that is still in it",
               {.random_delay = std::chrono::microseconds(3'000)})
(World& world) {
  const Toy toy = toy_model();
  for (int round = 0; round < 8; ++round) {
    Engine engine(world, toy.spec);  // whoever is slower must come through
    try {
      const MicroBatch leaf = engine.micro_batch();
      if (world.rank() == Rank(round % world.size())) throw std::runtime_error("right away");
      run_toy_leaf(engine, toy.forward, 1);
      engine.sum(1.0);
    } catch (const std::runtime_error&) {}
    CHECK_THROWS_AS((void)engine.micro_batch(), StepInterrupted);
  }
}

RANK_TEST(
    "an exception right after a step leaves that step applied on every rank: after restart_step the bits are those of the undisturbed run")
(World& world) {
  const Toy toy = toy_model();
  for (const Stage stage : kStages) {
    const ToyRun expected = run_toy_alone(toy, {.stage = stage}, world.size(), 6, {});
    Engine engine(world, toy.spec, {.stage = stage});
    engine.initialize(fill_toy);
    for (int s = 0; s < 6; ++s) {
      for (const bool throws : {true, false}) {
        try {
          const MicroBatch leaf = engine.micro_batch();
          // Ranks take turns; the thrower is off at once, while the others may still be in the step before.
          if (throws && world.rank() == Rank(s % world.size())) throw std::runtime_error("right away");
          run_toy_leaf(engine, toy.forward, static_cast<std::uint64_t>(s * world.size() + world.rank().value));
          if (throws) engine.sum(1.0);  // nobody gets past it
        } catch (const std::runtime_error&) { engine.restart_step(); }
      }
      CHECK(engine.step({}).step == s + 1);
    }
    CHECK(same_bits(all_weights(engine), expected.weights));
  }
}

RANK_TEST("a plan that one rank learnt before another rank's exception is forgotten by the restart")(World& world) {
  const Toy toy = toy_model(false);  // no order: the first leaf is observed
  Engine engine(world, toy.spec, {.micro_batches = 2, .parameter_slots = 3});
  engine.initialize(fill_toy);
  for (int round = 0; round < 3; ++round) {
    try {
      {
        const MicroBatch leaf = engine.micro_batch();
        run_toy_leaf(engine, toy.forward, 1);
        // After the last gather: the others need not wait for this rank to close their leaf and learn from it.
        if (world.rank() == last(world)) throw std::runtime_error("late");
      }
      const MicroBatch next = engine.micro_batch();
      run_toy_leaf(engine, toy.forward, 2);
      engine.sum(1.0);
    } catch (const std::runtime_error&) { engine.restart_step(); }
  }
  for (int a = 0; a < 2; ++a) {
    const MicroBatch leaf = engine.micro_batch();
    run_toy_leaf(engine, toy.forward, 3);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST("an exception caught inside a leaf across a parameter lease costs nothing: the plan goes on as on the other ranks")
(World& world) {
  const Toy toy = toy_model();
  Engine engine(world, toy.spec);
  for (int s = 0; s < 3; ++s) {
    {
      const MicroBatch leaf = engine.micro_batch();
      try {
        const ParameterLease w = engine.gather(toy.forward[0]);
        if (world.rank() == last(world)) throw std::runtime_error("caught inside");
      } catch (const std::runtime_error&) {}
      for (std::size_t i = 1; i < toy.forward.size(); ++i) { const ParameterLease w = engine.gather(toy.forward[i]); }
      for (std::size_t i = toy.forward.size(); i-- > 0;) {
        const ParameterLease w = engine.gather(toy.forward[i], Phase::backward);
        const GradientLease g = engine.gradients(toy.forward[i]);
      }
    }
    CHECK(engine.step({}).applied);
  }
  CHECK(engine.report().plan_misses == 0);
}

RANK_TEST("abandon() unwinds the step for code that returns errors: the next call throws StepInterrupted")(World& world) {
  const Toy toy = toy_model();
  Engine engine(world, toy.spec);
  try {
    MicroBatch leaf = engine.micro_batch();
    { const GradientLease g = engine.gradients(toy.forward[1]); }
    leaf.abandon();
  } catch (const StepInterrupted&) {  // a peer was first
  }
  CHECK_THROWS_AS((void)engine.micro_batch(), StepInterrupted);
  engine.restart_step();
  {
    const MicroBatch leaf = engine.micro_batch();
    run_toy_leaf(engine, toy.forward, 1);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST("ranks that throw all at once can all restart, again and again")(World& world) {
  const Toy toy = toy_model();
  Engine engine(world, toy.spec);
  for (int round = 0; round < 5; ++round) {
    try {
      const MicroBatch leaf = engine.micro_batch();
      { const ParameterLease w = engine.gather(toy.forward[0]); }
      throw std::runtime_error("on every rank");
    } catch (const std::runtime_error&) {}
    CHECK_THROWS_AS(engine.step({}), StepInterrupted);
    engine.restart_step();
  }
  {
    const MicroBatch leaf = engine.micro_batch();
    run_toy_leaf(engine, toy.forward, 1);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST(
    "B28: a rank that stalls in the middle of a step: every other rank throws CommFailure within the deadline, naming it, the verb and the "
    "unit")
(World& world) {
  if (world.size() == 1) return;
  const Toy toy = toy_model();
  for (const bool in_backward : {false, true}) {
    const auto deadline = milliseconds(1000);
    Engine engine(world, toy.spec, {.deadline = deadline});
    engine.initialize(fill_toy);
    meet(world);
    const auto begin = std::chrono::steady_clock::now();
    if (world.rank() == last(world)) {
      // Comes to grief in the middle: with one unit gathered, or with one reduced.
      const MicroBatch leaf = engine.micro_batch();
      { const ParameterLease w = engine.gather(toy.forward[0]); }
      if (in_backward) {
        for (std::size_t i = 1; i < toy.forward.size(); ++i) { const ParameterLease w = engine.gather(toy.forward[i]); }
        { const ParameterLease w = engine.gather(toy.forward.back(), Phase::backward); }
      }
      std::this_thread::sleep_for(deadline * 2);
      try {
        engine.sum(1.0);
      } catch (const Error&) {  // the others have gone
      }
      continue;
    }
    std::string verb, unit, dump;
    std::vector<Rank> culprits;
    try {
      {
        const MicroBatch leaf = engine.micro_batch();
        run_toy_leaf(engine, toy.forward, 1);
      }
      engine.step({});
    } catch (const CommFailure& e) { verb = e.verb, unit = e.unit, dump = e.dump, culprits = e.culprits; }
    CHECK(std::chrono::steady_clock::now() - begin <= deadline + milliseconds(500));
    CHECK(culprits == std::vector<Rank>{last(world)});
    CHECK((verb == "all_gather" || verb == "reduce_scatter"));
    CHECK_FALSE(unit.empty());
    CHECK_FALSE(dump.empty());
    CHECK(dump.find("gather") != std::string::npos);
  }
}

RANK_TEST("B28: destroying the engine in the middle of a step ends the others with CommFailure at once, naming the rank that left")
(World& world) {
  if (world.size() == 1) return;
  const Toy toy = toy_model();
  const auto begin = std::chrono::steady_clock::now();
  {
    Engine engine(world, toy.spec, {.deadline = std::chrono::seconds(20)});
    meet(world);
    if (world.rank() != last(world)) {
      const auto run = [&] {
        {
          const MicroBatch leaf = engine.micro_batch();
          run_toy_leaf(engine, toy.forward, 1);
        }
        engine.step({});
      };
      try {
        run();
        FAIL_CHECK("no error");
      } catch (const CommFailure& e) {
        CHECK(e.culprits == std::vector<Rank>{last(world)});
        CHECK(std::string(e.what()).find("rank " + std::to_string(last(world).value)) != std::string::npos);
      }
    }
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
}

RANK_TEST("a rank that leaves instead of restarting ends the others' restart_step with CommFailure")(World& world) {
  if (world.size() == 1) return;
  const Toy toy = toy_model();
  auto engine = std::make_unique<Engine>(world, toy.spec, Options{.deadline = std::chrono::seconds(20)});
  meet(world);
  try {
    const MicroBatch leaf = engine->micro_batch();
    { const ParameterLease w = engine->gather(toy.forward[1]); }
    if (world.rank() == last(world)) throw std::runtime_error("gives up");
    engine->sum(1.0);
  } catch (const std::exception&) {}
  if (world.rank() == last(world)) engine.reset();
  else CHECK_THROWS_AS(engine->restart_step(), CommFailure);
}

RANK_TEST("B27: ranks that lease other units, or make one extra call, all get an error that names both sides")(World& world) {
  if (world.size() == 1) return;
  const Toy toy = toy_model(false);  // no order: nothing is prefetched, so every lease below is a gather
  const bool odd_one = world.rank() == last(world);
  for (const int difference : {0, 1}) {
    Engine engine(world, toy.spec, {.deadline = milliseconds(2000)});
    meet(world);
    std::string message;
    try {
      {
        const MicroBatch leaf = engine.micro_batch();
        { const ParameterLease w = engine.gather(toy.forward[odd_one && difference == 0 ? 2 : 1]); }
        { const ParameterLease w = engine.gather(toy.forward[3]); }
        if (odd_one && difference == 1) { const ParameterLease w = engine.gather(toy.forward[2]); }
        { const GradientLease g = engine.gradients(toy.forward[1]); }
      }
      engine.step({});
    } catch (const Error& e) { message = e.what(); }
    CAPTURE(message);
    // The odd one, and one of those it differs from.
    CHECK(message.find("rank " + std::to_string(last(world).value)) != std::string::npos);
    bool other = false;
    for (int r = 0; r + 1 < world.size(); ++r) other = other || message.find("rank " + std::to_string(r)) != std::string::npos;
    CHECK(other);
  }
}

RANK_TEST("B18: prefetch depth and slots never change bits")(World& world) {
  const Toy toy = toy_model();
  const ToyRun expected = run_toy_alone(toy, {}, 2 * world.size(), 2);
  for (const int prefetch : {0, 1, 3})
    for (const int slots : {1, 2, 4}) {
      const ToyRun run =
          run_toy(world, toy, {.parameter_slots = slots, .prefetch = prefetch, .gradient_slots = slots}, 2 * world.size(), 2);
      CHECK(run.norms == expected.norms);
      CHECK(same_bits(run.weights, expected.weights));
    }
}

RANK_TEST_WITH("B18: random sleeps in every worker and 1 KiB chunks never change bits",
               {.chunk = Bytes(1024), .deadline = std::chrono::seconds(30), .random_delay = std::chrono::microseconds(300)})
(World& world) {
  const Toy toy = toy_model();
  for (const Stage stage : kStages) {
    const ToyRun expected = run_toy_alone(toy, {}, world.size(), 2);
    const ToyRun run = run_toy(world, toy, {.stage = stage}, world.size(), 2);
    CHECK(run.norms == expected.norms);
    CHECK(same_bits(run.weights, expected.weights));
  }
}
