// Which instruction set the loops over elements run with. They are compiled for each (core/each_isa.h), and every one gives the same bits,
// so that ranks on different processors need not agree.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera::core {

/// In rising order. `baseline` is what the library is compiled for: SSE2 on x86-64, NEON on aarch64.
enum class Isa : std::uint8_t { baseline, avx2, avx512 };

std::string_view name_of(Isa isa);  ///< "baseline", "avx2", "avx512"

/// Those that this machine has and that were compiled, the best last.
std::vector<Isa> available_isas();

/// The best of them, or what the environment variable TESSERA_ISA names: read once. Throws UsageError where that is none of them; a world
/// asks before its first loop.
Isa isa();

/// While it lives, isa() is another one. For tests and benchmarks; not while other threads run loops.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa);
  ~ForcedIsa();
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  int before_;
};

/// The function for isa(). A null one was not compiled.
template <class Function>
Function* for_isa(Function* baseline, Function* avx2, Function* avx512) {
  const Isa now = isa();
  if (now == Isa::avx512 && avx512 != nullptr) return avx512;
  if (now >= Isa::avx2 && avx2 != nullptr) return avx2;
  return baseline;
}

}  // namespace tessera::core
