// How fast this machine multiplies matrices: what a step's speed is compared with.
#pragma once

namespace gpt {

/// Floating-point operations per second of one thread in the product of a 512 x 512 with a 512 x 2048 matrix, measured for about `seconds`.
double measure_matrix_rate(double seconds);

}  // namespace gpt
