// libFuzzer target: any bytes as a safetensors file. Crashes, sanitizer reports, other exceptions than CheckpointError and files that are
// accepted although their data have gaps are findings.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/safetensors_check.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (tessera::judge_safetensors({reinterpret_cast<const char*>(data), size}) == tessera::Verdict::broken) std::abort();
  return 0;
}
