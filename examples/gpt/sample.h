// Text out of the trained model.
#pragma once

#include <cstdint>
#include <string>

#include "examples/gpt/model.h"

namespace gpt {

/// Collective. Draws `count` tokens one after the other at temperature 0.8, the first after token `prompt`. Rank 0 computes and returns
/// them: as bytes where the vocabulary has at most 256 ids, else as numbers. The other ranks take part in the gathers and return nothing.
std::string sample(tessera::Engine& engine, Model& model, std::int64_t count, std::int32_t prompt, std::uint64_t seed);

}  // namespace gpt
