// What must hold for any bytes offered as a safetensors file: refused with a CheckpointError, or understood without a gap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shard/safetensors_header.h"
#include "tessera/error.h"

namespace tessera {

enum class Verdict { refused, accepted, broken };

/// Reads `file` as the reader would. Broken: accepted although names repeat or the tensors are not exactly the data.
inline Verdict judge_safetensors(std::string_view file) {
  std::vector<SafetensorsEntry> entries;
  std::uint64_t at = 0;
  try {
    const std::uint64_t header = shard::safetensors_header_bytes(file.substr(0, 8), file.size(), "fuzzed");
    at = shard::kSafetensorsLengthBytes + header;
    entries = shard::parse_safetensors_header(file.substr(shard::kSafetensorsLengthBytes, header), file.size() - at, "fuzzed");
  } catch (const CheckpointError&) { return Verdict::refused; }
  std::set<std::string> names;
  for (const SafetensorsEntry& e : entries) {
    std::int64_t elements = 1;
    for (const std::int64_t d : e.shape) {
      if (d < 0) return Verdict::broken;
      elements *= d;  // cannot overflow where the bytes lie in the file
    }
    if (!names.insert(e.name).second || e.elements.value != elements || e.offset != at) return Verdict::broken;
    at += static_cast<std::uint64_t>(to_bytes(e.elements, e.dtype).value);
  }
  return at == file.size() ? Verdict::accepted : Verdict::broken;
}

inline std::string safetensors_image(std::string_view header, std::size_t data_bytes) {
  std::string result;
  for (int i = 0; i < 8; ++i) result += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i) & 0xffu);
  result += header;
  return result + std::string(data_bytes, '\1');
}

/// Files that are well-formed, to mutate.
inline std::vector<std::string> safetensors_seeds() {
  return {
      safetensors_image("{}", 0), safetensors_image(R"({"__metadata__":{"format":"pt"}}   )", 0),
      safetensors_image(R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})", 8),
      safetensors_image(R"({"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                        R"("e":{"dtype":"F64","shape":[0,7],"data_offsets":[14,14]},"__metadata__":{},)"
                        R"("c":{"dtype":"U8","shape":[1,1,2],"data_offsets":[14,16]}} )",
                        16)};
}

}  // namespace tessera
