// Builds with TESSERA_POISON overwrite memory that must not be read again with NaN patterns, so that a stale view shows up as NaN, not as
// old values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tessera/types.h"

namespace tessera::runtime {

#ifdef TESSERA_POISON
inline void poison(std::byte* data, Bytes bytes) {
  constexpr std::uint32_t pattern = 0x7fc0dead;  // a quiet NaN as f32; as bf16 pairs a NaN and a number
  for (std::int64_t i = 0; i + 4 <= bytes.value; i += 4) std::memcpy(data + i, &pattern, 4);
}
#else
inline void poison(std::byte*, Bytes) {}
#endif

}  // namespace tessera::runtime
