// Loops that only move memory, for comparison.
#pragma once

#include <cstdint>

namespace bench {

/// Reads and writes what a step of AdamW does, with one integer operation in place of each update. Compiled for this machine.
void touch(float* p, const float* g, float* m, float* v, std::int64_t n);

/// to[i] = parts[0][i] + parts[1][i] + ... over `ranks` parts. Compiled for this machine.
void add(const float* const* parts, int ranks, float* to, std::int64_t n);

}  // namespace bench
