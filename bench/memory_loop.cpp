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

void add(const float* const* parts, int ranks, float* __restrict to, std::int64_t n) {
  if (ranks == 2) {
    const float* __restrict a = parts[0];
    const float* __restrict b = parts[1];
    for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
  } else if (ranks == 4) {
    const float* __restrict a = parts[0];
    const float* __restrict b = parts[1];
    const float* __restrict c = parts[2];
    const float* __restrict d = parts[3];
    for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] + b[i] + c[i] + d[i];
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      float sum = 0.0f;
      for (int r = 0; r < ranks; ++r) sum += parts[r][i];
      to[i] = sum;
    }
  }
}

}  // namespace bench
