// The gradient norm with the same bits for every number of ranks. Each block of 1,024 elements gives one fp64 partial sum (a fixed number
// of lanes, whatever the vector width); partials are added as fixed-point integers, whose sum is exact and so does not depend on order or
// grouping.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/types.h"

namespace tessera::shard {

/// A sum of non-negative doubles (multiples of 2^-298, below 2^306) as 32-bit limbs in 64-bit integers: adding accumulators limb by limb
/// (an integer all_reduce) is exact for up to 2^30 of them. Trivially copyable: it travels as int64.
struct ExactSum {
  static constexpr int kLimbs = 20;
  std::array<std::int64_t, kLimbs> limbs{};
  std::int64_t non_finite = 0;  ///< how many elements were NaN or infinite; their blocks add nothing

  void add(double value);  ///< exact; throws UsageError for what is not such a double. Leaves every limb below 2^32
  void normalize();        ///< carries, so that every limb is below 2^32 again after limbs were added
  double value() const;    ///< the sum rounded to double (to nearest, ties to even); does not need normalize()
};

/// Adds, for y = gradient * scale (rounded to fp32), the sum over elements of |y|^p in blocks of kBlock from the start of the range. p is 1
/// or 2, else UsageError. `gradients` must start at a block of its segment; `scale` is finite. Counts non-finite y.
void add_norm(ExactSum& sum, const float* gradients, Elements count, float scale, int p);

/// The largest |y| of a range, as float; non-finite y are counted in `non_finite` and otherwise ignored.
float max_norm(const float* gradients, Elements count, float scale, std::int64_t& non_finite);

}  // namespace tessera::shard
