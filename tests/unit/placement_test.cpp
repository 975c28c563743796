#include "runtime/placement.h"

#include <doctest/doctest.h>

#include "tessera/error.h"

using namespace tessera;

namespace {
ModelSpec tied(std::int64_t reused, std::int64_t block, int blocks) {
  ModelSpec spec;
  spec.unit("embed").tensor("w", {reused}).uses(2);
  for (int i = 0; i < blocks; ++i) spec.unit("h." + std::to_string(i)).tensor("w", {block});
  return spec;
}
}  // namespace

TEST_CASE("placement: a reused unit has a parameter slot of its own only where that makes the total smaller") {
  constexpr std::int64_t k = 1 << 20;
  const auto slots = [](const ModelSpec& spec) {
    return forecast_memory(spec, {}, {.ranks = 4}).bytes[Category::full_parameters].value / 4;
  };
  CHECK(slots(tied(8 * k, k, 3)) == 8 * k + 2 * k);  // 10 instead of 16
  CHECK(slots(tied(3 * k, k, 3)) == 3 * k + 2 * k);  // 5 instead of 6
  CHECK(slots(tied(k, k, 3)) == 2 * k);              // instead of 3
  CHECK(slots(tied(k, 8 * k, 3)) == 16 * k);
}

TEST_CASE("placement: a reused unit always has a gradient slot of its own where gradients are sharded") {
  constexpr std::int64_t k = 1 << 20;
  CHECK(forecast_memory(tied(k, k, 3), {}, {.ranks = 4}).bytes[Category::full_gradients].value / 4 == k + 2 * k);
  CHECK(forecast_memory(tied(k, k, 3), {.stage = Stage::moments}, {.ranks = 4}).bytes[Category::full_gradients].value == 0);
}

TEST_CASE("placement: fewer slots are allocated where fewer units could use them") {
  ModelSpec spec;
  spec.unit("only").tensor("w", {8192});
  const MemoryForecast f = forecast_memory(spec, {.parameter_slots = 5, .gradient_slots = 5}, {.ranks = 2});
  CHECK(f.parameter_slots == 1);
  CHECK(f.gradient_slots == 1);
}

TEST_CASE("placement: a segment whose padding would exceed it is replicated, and the forecast says so") {
  ModelSpec spec;
  spec.unit("tiny").tensor("w", {5});
  spec.unit("large").tensor("w", {1 << 20});
  const MemoryForecast f = forecast_memory(spec, {}, {.ranks = 4});
  REQUIRE_FALSE(f.decisions.empty());
  CHECK(f.decisions[0].find("unit 'tiny': its 5 fp32 elements are replicated") == 0);
  CHECK(f.bytes[Category::moments].value == 8 * (64 + (1 << 18)));
}

TEST_CASE("placement: a model of more than 2^31 elements, and of a trillion, is planned (B7)") {
  ModelSpec spec;
  for (int i = 0; i < 100; ++i) spec.unit("h." + std::to_string(i)).tensor("w", {10'000'000'000});
  const MemoryBytes b = forecast_memory(spec, {}, {.ranks = 1024}).bytes;
  const std::int64_t shard = (10'000'000'000 + 1024 * 1024 - 1) / (1024 * 1024) * 1024;
  CHECK(b[Category::parameters].value == 100 * 4 * shard);
  CHECK(b[Category::full_parameters].value == 2 * 4 * shard * 1024);
}

TEST_CASE("placement: options and specs that cannot be kept are refused with the field and the fix") {
  ModelSpec spec;
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {}, {}), doctest::Contains("no units"), UsageError);
  spec.unit("a").tensor("w", {4});
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {.micro_batches = 0}, {}), doctest::Contains("micro_batches is 0"), UsageError);
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {.parameter_slots = 0}, {}), doctest::Contains("parameter_slots is 0"), UsageError);
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {.prefetch = -1}, {}), doctest::Contains("prefetch is -1"), UsageError);
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {.gradient_slots = -2}, {}), doctest::Contains("gradient_slots is -2"), UsageError);
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {.memory_budget = Bytes(-1)}, {}), doctest::Contains("memory_budget is -1"), UsageError);
  spec.unit("b").tensor("half", {4}, DType::bf16);
  CHECK_THROWS_WITH_AS(forecast_memory(spec, {}, {}), doctest::Contains("tensor 'half' of unit 'b' is trainable and bf16"), UsageError);
}

TEST_CASE("placement: where a lower stage would hold less, the forecast says which and how much (B14)") {
  const auto says = [](std::int64_t elements, int units) {
    ModelSpec spec;
    for (int i = 0; i < units; ++i) spec.unit("h." + std::to_string(i)).tensor("w", {elements});
    for (const std::string& d : forecast_memory(spec, {}, {.ranks = 4}).decisions)
      if (d.find("would hold") != std::string::npos) return d;
    return std::string();
  };
  CHECK(says(8192, 1).find("stage 1 would hold 81920 bytes instead of 98304") == 0);  // 8P + 8P/4 against 16P/4 + two slots
  CHECK(says(8192, 12).empty());
}
