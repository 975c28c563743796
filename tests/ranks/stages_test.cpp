// The strongest property there is: every stage and every number of ranks gives the bits of the one-rank run of the same micro-batches.
#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

using namespace tessera;
using namespace tessera::testing;

RANK_TEST("B15: stages 0, 1, 2, 3 give the bits of the one-rank run with the same micro-batches")(World& world) {
  const Toy toy = toy_model();
  const int leaves = 2 * world.size();
  const ToyRun alone = run_toy_alone(toy, {.stage = Stage::none}, leaves, 3);
  for (const Stage stage : {Stage::none, Stage::moments, Stage::gradients, Stage::parameters}) {
    CAPTURE(static_cast<int>(stage));
    const ToyRun run = run_toy(world, toy, {.stage = stage}, leaves, 3);
    CHECK(run.norms == alone.norms);
    CHECK(same_bits(run.weights, alone.weights));
  }
}

RANK_TEST("B15: with one micro-batch per rank, where sums are formed in place, the bits are the same")(World& world) {
  const Toy toy = toy_model();
  const ToyRun alone = run_toy_alone(toy, {.stage = Stage::parameters}, world.size(), 3);
  for (const Stage stage : {Stage::none, Stage::moments, Stage::gradients, Stage::parameters}) {
    CAPTURE(static_cast<int>(stage));
    const ToyRun run = run_toy(world, toy, {.stage = stage}, world.size(), 3);
    CHECK(run.norms == alone.norms);
    CHECK(same_bits(run.weights, alone.weights));
  }
}
