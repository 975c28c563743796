// The header of a safetensors file as text: checking what a file claims, and writing what a reader will check. No files here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/safetensors.h"
#include "tessera/types.h"

namespace tessera::shard {

inline constexpr std::uint64_t kSafetensorsLengthBytes = 8;                // the little-endian length in front of the header
inline constexpr std::uint64_t kSafetensorsMostHeaderBytes = 100'000'000;  // the reference reader's limit

/// The header's length from the first eight bytes of a file of `file_bytes`. Throws CheckpointError where the file is shorter, or
/// the header over the limit or the file.
std::uint64_t safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes, const std::string& path);

/// The tensors of a header, in order of offset, whose data are the `data_bytes` after it. Every byte of data belongs to exactly
/// one tensor; anything else throws CheckpointError with the path and the fault.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes, const std::string& path);

/// What a writer puts in front of the data, and where each tensor then starts.
struct SafetensorsPlan {
  std::string prefix;                  ///< length and header, padded with spaces so that data start at a multiple of eight bytes
  std::vector<std::uint64_t> offsets;  ///< from the start of the file, in the order of `tensors`
  std::uint64_t file_bytes = 0;
};

/// Wider types lie in front of narrower ones, so that each tensor is aligned to its type whatever the sizes (readers that map the
/// file need it). Throws UsageError for names that are doubled, reserved or not UTF-8, for impossible shapes, and for a header
/// over the limit.
SafetensorsPlan plan_safetensors(const std::vector<SafetensorsWriter::Tensor>& tensors);

}  // namespace tessera::shard
