// The yardstick of compute: what one thread of this machine makes of a matrix product.
#pragma once

namespace bench {

/// Floating-point operations per second of Eigen's product of a 512 x 512 with a 512 x 2048 matrix, fp32, measured for a second.
double product_flops_per_second();

}  // namespace bench
