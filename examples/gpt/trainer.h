// The training run: initialize, steps, sample, export, report.
#pragma once

#include "examples/gpt/setup.h"
#include "tessera/world.h"

namespace gpt {

/// Collective. Throws InputError on all ranks for what turns out wrong before training, other exceptions for what happens later.
void train(tessera::World& world, Setup& setup);

}  // namespace gpt
