// What a step's gradient is: sums over leaves and ranks, who must give, what is left alone, what a norm counts.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr Stage kStages[] = {Stage::none, Stage::moments, Stage::gradients, Stage::parameters};
constexpr auto kPatience = std::chrono::milliseconds(1500);  // of tests that wait for an error

ModelSpec two_units(bool second_optional = false) {
  ModelSpec spec;
  spec.unit("always").tensor("w", {1500}).tensor("v", {9});
  UnitBuilder second = spec.unit("sometimes").tensor("w", {3, 700});
  if (second_optional) second.optional();
  return spec;
}
const UnitId always{0}, sometimes{1};

void give(Engine& engine, UnitId unit, float value, std::initializer_list<const char*> tensors = {"w"}) {
  const GradientLease g = engine.gradients(unit);
  for (const char* t : tensors)
    for (float& v : g[t]) v += value;
}

float first_weight(Engine& engine, UnitId unit, const char* tensor = "w") {
  const ParameterLease w = engine.gather(unit);
  return w[tensor][0];
}

}  // namespace

RANK_TEST("B17: a sum is a sum: rank r contributes r + 1, the gradient is W(W+1)/2, never an average")(World& world) {
  const auto n = static_cast<float>(world.size());
  for (const Stage stage : kStages) {
    Engine engine(world, two_units(), {.stage = stage, .optimizer = Sgd{}});
    {
      const MicroBatch leaf = engine.micro_batch();
      give(engine, always, static_cast<float>(world.rank().value + 1), {"w", "v"});
    }
    engine.step({.learning_rate = 1.0f});
    CHECK(first_weight(engine, always) == -n * (n + 1) / 2);
    CHECK(first_weight(engine, always, "v") == -n * (n + 1) / 2);
  }
}

RANK_TEST("B16: k micro-batches equal one batch k times as large; k may change between steps; a smaller last accumulation is applied")
(World& world) {
  for (const Stage stage : kStages) {
    Engine engine(world, two_units(), {.stage = stage, .optimizer = Sgd{}, .micro_batches = 4});
    float expected = 0.0f;
    for (const int k : {4, 1, 3, 2}) {
      for (int a = 0; a < k; ++a) {
        const MicroBatch leaf = engine.micro_batch();
        give(engine, always, 0.25f);
      }
      const StepResult r = engine.step({.learning_rate = 1.0f});
      CHECK(r.leaves == k * world.size());
      expected -= 0.25f * static_cast<float>(k * world.size());
      CHECK(first_weight(engine, always) == expected);
    }
  }
}

RANK_TEST("engine.sum folds one value per leaf in leaf order, with the same bits at every number of ranks")(World& world) {
  Engine engine(world, two_units());
  std::vector<double> values;
  for (int a = 0; a < 3; ++a) values.push_back(1.0 / (a * world.size() + world.rank().value + 3));
  double expected = 0.0;
  for (int l = 0; l < 3 * world.size(); ++l) expected += 1.0 / (l + 3);
  CHECK(std::bit_cast<std::uint64_t>(engine.sum(values)) == std::bit_cast<std::uint64_t>(expected));
}

RANK_TEST("B22: with different numbers of valid tokens per rank, the scale by the global count gives the one-rank result")(World& world) {
  const auto run = [](const World& w, int leaves) {
    Engine engine(w, two_units(), {.micro_batches = leaves / w.size()});
    engine.initialize(fill_toy);
    std::vector<double> tokens;
    for (int a = 0; a < leaves / w.size(); ++a) {
      const int l = a * w.size() + w.rank().value;
      const MicroBatch leaf = engine.micro_batch();
      const GradientLease g = engine.gradients(always);
      for (int token = 0; token <= l % 5; ++token)
        for (float& v : g["w"]) v += noise(static_cast<std::uint64_t>(l), static_cast<std::uint64_t>(token), 1);
      tokens.push_back(l % 5 + 1);
    }
    engine.step({.gradient_scale = 1.0 / engine.sum(tokens)});
    return all_weights(engine);
  };
  std::vector<World> alone = thread_world(1);
  CHECK(same_bits(run(world, 2 * world.size()), run(alone.front(), 2 * world.size())));
}

RANK_TEST("B19: a tensor that no rank gave a gradient stays untouched: no decay, no moments, its step count not advanced")(World& world) {
  for (const Stage stage : kStages) {
    Engine engine(world, two_units(),
                  {.stage = stage, .optimizer = AdamW{.weight_decay = 0.5f}, .groups = [](const TensorSpec&) { return TensorGroup{}; }});
    engine.initialize([](const TensorPiece& p) {
      for (float& v : p.values()) v = 1.0f;
    });
    for (int s = 0; s < 2; ++s) {
      {
        const MicroBatch leaf = engine.micro_batch();
        give(engine, always, 1.0f);  // "w" alone
      }
      engine.step({.learning_rate = 0.1f});
    }
    CHECK(first_weight(engine, always) < 1.0f);
    CHECK(first_weight(engine, always, "v") == 1.0f);
    CHECK(first_weight(engine, sometimes) == 1.0f);
    // Now "sometimes" gets its first gradient: bias correction as on a first step, so the update is lr * sign.
    {
      const MicroBatch leaf = engine.micro_batch();
      give(engine, sometimes, 123.0f);
    }
    engine.step({.learning_rate = 0.1f});
    CHECK(first_weight(engine, sometimes) == doctest::Approx(1.0f - 0.1f * 0.5f - 0.1f).epsilon(1e-5));
  }
}

RANK_TEST("B19: some ranks give a unit a gradient and others do not: an error that names the unit and both sides, within the deadline")
(World& world) {
  if (world.size() == 1) return;
  for (const Stage stage : kStages) {
    const auto begin = std::chrono::steady_clock::now();
    Engine engine(world, two_units(), {.stage = stage, .deadline = kPatience});
    meet(world);
    std::string message;
    try {
      {
        const MicroBatch leaf = engine.micro_batch();
        if (world.rank() == Rank(0)) give(engine, sometimes, 1.0f);
        give(engine, always, 1.0f);
      }
      engine.step({});
    } catch (const Error& e) { message = e.what(); }
    CAPTURE(message);
    CHECK(message.find("sometimes") != std::string::npos);
    CHECK(message.find("rank 0") != std::string::npos);
    CHECK(message.find("rank ", message.find("rank 0") + 1) != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < kPatience + std::chrono::seconds(1));
  }
}

RANK_TEST("B19: the unit that only some ranks gave is named also where it was the last of the leaf; all can restart")(World& world) {
  if (world.size() == 1) return;
  Engine engine(world, two_units(), {.deadline = kPatience});
  const auto run = [&] {
    {
      const MicroBatch leaf = engine.micro_batch();
      give(engine, always, 1.0f);
      if (world.rank() == Rank(0)) give(engine, sometimes, 1.0f);
    }
    engine.step({});
  };
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("unit 'sometimes'"), Error);
  engine.restart_step();
  {
    const MicroBatch leaf = engine.micro_batch();
    give(engine, always, 1.0f);
  }
  CHECK(engine.step({}).applied);
}

RANK_TEST("B19: the same tensor set is asked of all ranks: one that gives another tensor of the unit is named")(World& world) {
  if (world.size() == 1) return;
  Engine engine(world, two_units(), {.deadline = kPatience});
  meet(world);
  std::string message;
  try {
    {
      const MicroBatch leaf = engine.micro_batch();
      give(engine, always, 1.0f, {world.rank() == Rank(0) ? "w" : "v"});
    }
    engine.step({});
  } catch (const Error& e) { message = e.what(); }
  CAPTURE(message);
  CHECK(message.find("always") != std::string::npos);
}

RANK_TEST("B19: ranks that give nothing to an optional unit count as zeros, and nobody giving leaves it untouched")(World& world) {
  for (const Stage stage : kStages)
    for (const int k : {1, 2}) {
      Engine engine(world, two_units(true), {.stage = stage, .optimizer = Sgd{.weight_decay = 0.5f}, .micro_batches = k});
      engine.initialize([](const TensorPiece& p) {
        for (float& v : p.values()) v = 1.0f;
      });
      for (int a = 0; a < k; ++a) {
        const MicroBatch leaf = engine.micro_batch();
        give(engine, always, 1.0f);
        if (world.rank() == Rank(world.size() - 1) && a == 0) give(engine, sometimes, 0.25f);
      }
      engine.step({.learning_rate = 1.0f});
      CHECK(first_weight(engine, sometimes) == 1.0f - 0.5f - 0.25f);
      for (int a = 0; a < k; ++a) {
        const MicroBatch leaf = engine.micro_batch();
        give(engine, always, 1.0f);
      }
      engine.step({.learning_rate = 1.0f});
      CHECK(first_weight(engine, sometimes) == 0.25f);
    }
}

RANK_TEST("B3: a unit used twice has its gradients added, is counted once in the norm and stepped once")(World& world) {
  for (const Stage stage : kStages)
    for (const std::int64_t n : {1, 2047, 5000}) {
      ModelSpec spec;
      const UnitId tied = spec.unit("tied").tensor("w", {n}).uses(2);
      Engine engine(world, spec, {.stage = stage, .optimizer = Sgd{}});
      {
        const MicroBatch leaf = engine.micro_batch();
        give(engine, tied, 1.0f), give(engine, tied, 2.0f);
      }
      const StepResult r = engine.step({.learning_rate = 1.0f});
      CHECK(r.gradient_norm == doctest::Approx(3.0 * world.size() * std::sqrt(static_cast<double>(n))).epsilon(1e-12));
      CHECK(first_weight(engine, tied) == -3.0f * static_cast<float>(world.size()));
      CHECK(engine.report().plan_misses == 0);
    }
}

RANK_TEST("B20: the norm is over every trainable element exactly once, the same on every rank, for p = 1, 2 and infinity")(World& world) {
  const Toy toy = toy_model();
  for (const NormType type : {NormType::one, NormType::two, NormType::infinity}) {
    double expected = -1.0;
    for (const Stage stage : kStages) {
      Engine engine(world, toy.spec, {.stage = stage});
      {
        const MicroBatch leaf = engine.micro_batch();
        for (std::size_t u = 0; u < engine.spec().units().size(); ++u)
          for (int use = 0; use < engine.spec().units()[u].uses; ++use) {
            const GradientLease g = engine.gradients(UnitId(static_cast<int>(u)));
            for (const TensorSpec& t : engine.spec().units()[u].tensors)
              for (float& v : g[t.name]) v += 0.5f / static_cast<float>(engine.spec().units()[u].uses);
          }
      }
      const double norm = engine.step({.gradient_scale = 1.0 / world.size(), .norm = type}).gradient_norm;
      const auto n = static_cast<double>(toy.spec.trainable_elements().value);
      const double exact = type == NormType::one ? 0.5 * n : type == NormType::two ? 0.5 * std::sqrt(n) : 0.5;
      CHECK(norm == doctest::Approx(exact).epsilon(1e-6));
      if (expected < 0.0) expected = norm;
      CHECK(norm == expected);
      CHECK(engine.sum(norm) == doctest::Approx(norm * world.size()).epsilon(1e-15));
    }
  }
}

RANK_TEST("the clip factor is min(1, clip / (norm + 1e-6)) and is applied to what the optimizer sees")(World& world) {
  Engine engine(world, two_units(), {.optimizer = Sgd{}});
  {
    const MicroBatch leaf = engine.micro_batch();
    give(engine, always, 2.0f);
  }
  const StepResult r = engine.step({.learning_rate = 1.0f, .gradient_scale = 1.0 / world.size(), .clip_norm = 1.0});
  CHECK(r.clip_factor == doctest::Approx(1.0 / (2.0 * std::sqrt(1500.0) + 1e-6)));
  CHECK(first_weight(engine, always) == doctest::Approx(-2.0 * r.clip_factor).epsilon(1e-6));
}

RANK_TEST("B21: NaN or infinity on one rank alone: the step is skipped on all, says how many elements, and changes no bit")(World& world) {
  for (const Stage stage : kStages)
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      Engine engine(world, two_units(), {.stage = stage});
      engine.initialize(fill_toy);
      const std::vector<float> before = all_weights(engine);
      const auto leaf = [&](float extra) {
        const MicroBatch scope = engine.micro_batch();
        const GradientLease g = engine.gradients(always);
        for (float& v : g["w"]) v += 1.0f;
        if (world.rank() == Rank(world.size() - 1)) g["w"][1400] += extra;
      };
      leaf(bad);
      const StepResult r = engine.step({.clip_norm = 1.0});
      CHECK_FALSE(r.applied);
      CHECK(r.step == 0);
      CHECK(std::isnan(r.gradient_norm));
      CHECK(r.reason.find("1 elements of the scaled gradient are NaN or infinite (rank ") != std::string::npos);
      CHECK(same_bits(all_weights(engine), before));
      // As if it had not been: the next step is a first step.
      leaf(0.0f);
      CHECK(engine.step({}).step == 1);
      Engine fresh(world, two_units(), {.stage = stage});
      fresh.initialize(fill_toy);
      {
        const MicroBatch scope = fresh.micro_batch();
        const GradientLease g = fresh.gradients(always);
        for (float& v : g["w"]) v += 1.0f;
      }
      fresh.step({});
      CHECK(same_bits(all_weights(engine), all_weights(fresh)));
    }
}

RANK_TEST("B21: non_finite = raise throws on every rank, apply applies")(World& world) {
  for (const NonFinite policy : {NonFinite::raise, NonFinite::apply}) {
    Engine engine(world, two_units(), {.optimizer = Sgd{}, .non_finite = policy});
    {
      const MicroBatch leaf = engine.micro_batch();
      give(engine, always, std::numeric_limits<float>::infinity());
    }
    if (policy == NonFinite::raise) {
      CHECK_THROWS_WITH_AS(engine.step({}), doctest::Contains("NaN or infinite"), RuntimeFailure);
      CHECK(first_weight(engine, always) == 0.0f);
    } else {
      CHECK(engine.step({}).applied);
      CHECK(std::isinf(first_weight(engine, always)));
    }
  }
}

RANK_TEST("B5: tensors of different dtypes, trainable and frozen, share a unit")(World& world) {
  ModelSpec spec;
  const UnitId u = spec.unit("mixed")
                       .tensor("half", {2100}, DType::bf16, Training::frozen)
                       .tensor("w", {2050})
                       .tensor("double", {5}, DType::f64, Training::frozen)
                       .tensor("index", {4097}, DType::i64, Training::frozen)
                       .tensor("bias", {33});
  for (const Stage stage : kStages) {
    Engine engine(world, spec, {.stage = stage, .optimizer = Sgd{}});
    engine.initialize([](const TensorPiece& p) {
      for (std::int64_t i = 0; i < p.count.value; ++i) {
        const std::int64_t e = p.begin.value + i;
        switch (p.tensor.dtype) {
          case DType::bf16: p.values<bf16>()[static_cast<std::size_t>(i)] = bf16(static_cast<float>(e % 128)); break;
          case DType::f64: p.values<double>()[static_cast<std::size_t>(i)] = 1e300 * static_cast<double>(e); break;
          case DType::i64: p.values<std::int64_t>()[static_cast<std::size_t>(i)] = e << 40; break;
          default: p.values()[static_cast<std::size_t>(i)] = static_cast<float>(e);
        }
      }
    });
    {
      const MicroBatch leaf = engine.micro_batch();
      const ParameterLease w = engine.gather(u);
      const GradientLease g = engine.gradients(u);
      CHECK(static_cast<float>(w.view<bf16>("half")[2099]) == static_cast<float>(2099 % 128));
      CHECK(w.view<double>("double")[4] == 4e300);
      CHECK(w.view<std::int64_t>("index")[4096] == std::int64_t{4096} << 40);
      CHECK(w["w"][2049] == 2049.0f);
      CHECK(g["half"].empty());
      CHECK_FALSE(g.wants("half"));
      CHECK(g["w"].size() == 2050);
      g["w"][2049] += 1.0f;
      g["bias"][32] += 2.0f;
    }
    engine.step({.learning_rate = 1.0f});
    const ParameterLease w = engine.gather(u);
    CHECK(w["w"][2049] == 2049.0f - static_cast<float>(world.size()));
    CHECK(w["bias"][32] == 32.0f - 2.0f * static_cast<float>(world.size()));
    CHECK(w.view<std::int64_t>("index")[4096] == std::int64_t{4096} << 40);
  }
}

RANK_TEST("B1: units of 0, 1, 3, 5, 7 and 1023 elements, empty tensors first, in the middle, last and alone, train as on one rank")
(World& world) {
  Toy toy;
  for (const std::int64_t n : {0, 1, 3, 5, 7, 1023})
    toy.forward.push_back(toy.spec.unit(std::string("u") + std::to_string(n))
                              .tensor("first", {0})
                              .tensor("w", {n})
                              .tensor("mid", {3, 0})
                              .tensor("b", {n})
                              .tensor("last", {0}));
  toy.spec.order(toy.forward);
  const ToyRun expected = run_toy_alone(toy, {}, world.size(), 3);
  for (const Stage stage : kStages) {
    const ToyRun run = run_toy(world, toy, {.stage = stage}, world.size(), 3);
    CHECK(run.norms == expected.norms);
    CHECK(same_bits(run.weights, expected.weights));
  }
}

RANK_TEST("options or models that differ between ranks are refused on every rank, naming what differs")(World& world) {
  if (world.size() == 1) return;
  const bool odd_one = world.rank() == Rank(1);
  CHECK_THROWS_WITH_AS(Engine(world, two_units(), {.stage = odd_one ? Stage::none : Stage::parameters}), doctest::Contains("stage=0"),
                       UsageError);
  CHECK_THROWS_WITH_AS(Engine(world, two_units(odd_one)), doctest::Contains("one model"), UsageError);
  CHECK_THROWS_WITH_AS(Engine(world, two_units(), {.parameter_slots = odd_one ? 0 : 2}),
                       doctest::Contains("rank 1: Options::parameter_slots is 0"), UsageError);
  Engine engine(world, two_units());
  {
    const MicroBatch leaf = engine.micro_batch();
    give(engine, always, 1.0f);
  }
  CHECK_THROWS_WITH_AS(engine.step({.learning_rate = odd_one ? 1.0f : 2.0f}), doctest::Contains("learning_rate=1"), UsageError);
  CHECK(engine.step({}).applied);
}

RANK_TEST("ranks with different numbers of micro-batches are refused on every rank, and all can restart")(World& world) {
  if (world.size() == 1) return;
  Engine engine(world, two_units(), {.micro_batches = 2, .deadline = kPatience});
  const auto run = [&] {
    for (int a = 0; a < (world.rank() == Rank(0) ? 2 : 1); ++a) {
      const MicroBatch leaf = engine.micro_batch();
      give(engine, always, 1.0f);
    }
    engine.step({});
  };
  // UsageError, or StepInterrupted with that cause where a peer was first.
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("micro-batches"), Error);
  engine.restart_step();
  {
    const MicroBatch leaf = engine.micro_batch();
    give(engine, always, 1.0f);
  }
  CHECK(engine.step({}).applied);
}
