// Sums and extrema of W contributions, element by element, in rank order, in one pass over memory. What makes the bits of a
// reduction independent of chunks, transports and timing.
#pragma once

#include <span>

#include "tessera/communicator.h"

namespace tessera::comm {

/// destination[i] = ((start + c_0[i]) + c_1[i]) + ..., where start is +0 (Fold::start) or what the destination holds (Fold::onward).
/// f32, bf16 and f16 are added in f32 and rounded once at the end, f64 in f64, integers modulo their size.
/// `contributions` hold `elements` of `from`, the destination `elements` of `to`: the same, or f32 for bf16 and f16.
/// The destination may be one of the contributions where the types are equal and `fold` is start.
void fold_sum(std::span<const void* const> contributions, DType from, void* destination, DType to, Elements elements, Fold fold);

/// destination[i] = the largest (smallest) of the contributions; NaN wins. The destination may be one of them.
void fold_extreme(std::span<const void* const> contributions, DType dtype, void* destination, Elements elements, ReduceOp op);

}  // namespace tessera::comm
