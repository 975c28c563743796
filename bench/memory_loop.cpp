#include "bench/memory_loop.h"

namespace bench {

void touch(float* p, const float* g, float* m, float* v, std::int64_t n) {
  // As integers: no arithmetic on floats, and a pattern that the compiler cannot leave out.
  auto* __restrict pi = reinterpret_cast<std::uint32_t*>(p);
  const auto* __restrict gi = reinterpret_cast<const std::uint32_t*>(g);
  auto* __restrict mi = reinterpret_cast<std::uint32_t*>(m);
  auto* __restrict vi = reinterpret_cast<std::uint32_t*>(v);
  for (std::int64_t i = 0; i < n; ++i) {
    pi[i] ^= gi[i] & 1u;
    mi[i] ^= 1u;
    vi[i] ^= 1u;
  }
}

}  // namespace bench
