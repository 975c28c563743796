#include "core/isa.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "tessera/error.h"

namespace tessera::core {

namespace {

std::atomic<int> forced{-1};

Isa choose() {
  const std::vector<Isa> available = available_isas();
  const char* named = std::getenv("TESSERA_ISA");
  if (named == nullptr || *named == '\0') return available.back();
  std::string known;
  for (const Isa isa : available) {
    if (name_of(isa) == named) return isa;
    known += (known.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  throw UsageError(fmt::format("TESSERA_ISA is '{}'; this machine has {}", named, known));
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "?";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> out{Isa::baseline};
#if defined(__x86_64__)
  // What Highway's targets of these names may use.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) out.push_back(Isa::avx2);
  if (out.back() == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    out.push_back(Isa::avx512);
#endif
  return out;
}

Isa isa() {
  const int now = forced.load(std::memory_order_relaxed);
  if (now >= 0) return static_cast<Isa>(now);
  static const Isa kChosen = choose();
  return kChosen;
}

ForcedIsa::ForcedIsa(Isa isa) : before_(forced.exchange(static_cast<int>(isa))) {}
ForcedIsa::~ForcedIsa() { forced = before_; }

}  // namespace tessera::core
