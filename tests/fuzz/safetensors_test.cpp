#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/safetensors_check.h"

using namespace tessera;

namespace {

/// One to eight small changes: bytes, pieces that matter to the grammar, cuts, repeats, swaps of two pieces, and the length set right
/// again.
std::string mutated(std::string file, std::mt19937_64& engine) {
  static constexpr const char* kPieces[] = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "\"",
                                            "0",
                                            "1",
                                            "-1",
                                            "8",
                                            "16",
                                            "1e9",
                                            "4294967296",
                                            "18446744073709551615",
                                            "null",
                                            "true",
                                            "\"F32\"",
                                            "\"U8\"",
                                            "\"a\"",
                                            "\"shape\"",
                                            "\"dtype\"",
                                            "\"data_offsets\"",
                                            "[0,8]",
                                            "\"__metadata__\"",
                                            "\\u0061",
                                            " ",
                                            "\t",
                                            "\xff",
                                            "2.0"};
  const auto below = [&engine](std::size_t n) { return n == 0 ? std::size_t{0} : static_cast<std::size_t>(engine() % n); };
  for (std::size_t changes = 1 + below(8); changes > 0; --changes) {
    const std::size_t at = below(file.size() + 1);
    const std::size_t length = below(std::min<std::size_t>(24, file.size() - at + 1));
    switch (below(7)) {
      case 0:
        if (at < file.size()) file[at] = static_cast<char>(engine());
        break;
      case 1: file.insert(at, kPieces[below(std::size(kPieces))]); break;
      case 2: file.replace(at, length, kPieces[below(std::size(kPieces))]); break;
      case 3: file.erase(at, length); break;
      case 4: file.insert(at, file.substr(at, length)); break;
      case 5: file.insert(below(file.size() + 1), file.substr(at, length)); break;
      default:
        if (at < file.size() && file[at] >= '0' && file[at] <= '9') file[at] = static_cast<char>('0' + below(10));
    }
  }
  if (file.size() >= 8 && below(4) != 0) {  // else most mutants would fail at the length
    const std::size_t end = file.rfind('}');
    const std::size_t header = end == std::string::npos || end < 8 ? file.size() - 8 : end + 1 - 8;
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header >> (8 * i) & 0xffu);
  }
  return file;
}

}  // namespace

TEST_CASE("safetensors: mutated files are refused, or accepted with names and data in full order (B42)") {
  std::mt19937_64 engine(42);
  const std::vector<std::string> seeds = safetensors_seeds();
  for (const std::string& seed : seeds) REQUIRE(judge_safetensors(seed) == Verdict::accepted);
  int refused = 0;
  int accepted = 0;
  for (int i = 0; i < 60'000; ++i) {
    const std::string file = mutated(seeds[static_cast<std::size_t>(i) % seeds.size()], engine);
    const Verdict verdict = judge_safetensors(file);
    refused += verdict == Verdict::refused ? 1 : 0;
    accepted += verdict == Verdict::accepted ? 1 : 0;
    if (verdict == Verdict::broken) FAIL_CHECK("accepted, but broken: " << file.substr(std::min<std::size_t>(8, file.size())));
  }
  CHECK(refused > 30'000);
  CHECK(accepted > 1'000);  // the mutations are not all absurd
}

TEST_CASE("safetensors: every single-byte change of a header is refused, or accepted with names and data in full order (B42)") {
  for (const std::string& seed : safetensors_seeds())
    for (std::size_t at = 0; at < seed.size(); ++at)
      for (int value = 0; value < 256; ++value) {
        std::string file = seed;
        file[at] = static_cast<char>(value);
        if (judge_safetensors(file) == Verdict::broken)
          FAIL_CHECK("accepted, but broken: byte " << at << " as " << value << " of " << seed);
      }
}
