#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "shard/file.h"
#include "shard/safetensors_header.h"
#include "tessera/error.h"
#include "tessera/half.h"
#include "tessera/safetensors.h"

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian and read as they lie");

namespace tessera {
namespace {

template <class Stored>
void read_converted(const shard::InputFile& file, std::uint64_t offset, std::int64_t count, float* out) {
  constexpr std::int64_t kChunk = 4096;  // elements; 32 KiB of stack at most
  std::array<Stored, static_cast<std::size_t>(kChunk)> chunk;
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t n = std::min(kChunk, count - done);
    file.read(offset + static_cast<std::uint64_t>(done) * sizeof(Stored), chunk.data(), static_cast<std::size_t>(n) * sizeof(Stored));
    for (std::int64_t i = 0; i < n; ++i) out[done + i] = static_cast<float>(chunk[static_cast<std::size_t>(i)]);
  }
}

std::vector<SafetensorsEntry> read_header(const shard::InputFile& file) {
  const std::uint64_t file_bytes = file.size_bytes();
  std::array<char, shard::kSafetensorsLengthBytes> first{};
  const auto present = static_cast<std::size_t>(std::min<std::uint64_t>(first.size(), file_bytes));
  file.read(0, first.data(), present);
  const std::uint64_t header_bytes = shard::safetensors_header_bytes({first.data(), present}, file_bytes, file.path());
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  file.read(first.size(), header.data(), header.size());
  return shard::parse_safetensors_header(header, file_bytes - first.size() - header_bytes, file.path());
}

}  // namespace

struct SafetensorsReader::Impl {
  explicit Impl(std::string path) : file(std::move(path)), entries(read_header(file)) {
    for (std::size_t i = 0; i < entries.size(); ++i) by_name.emplace(entries[i].name, i);
  }

  shard::InputFile file;
  std::vector<SafetensorsEntry> entries;
  std::unordered_map<std::string, std::size_t> by_name;
};

SafetensorsReader::SafetensorsReader(std::string path) : impl_(std::make_unique<Impl>(std::move(path))) {}
SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;

const std::vector<SafetensorsEntry>& SafetensorsReader::entries() const { return impl_->entries; }

const SafetensorsEntry* SafetensorsReader::find(const std::string& name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->entries[found->second];
}

void SafetensorsReader::read(const SafetensorsEntry& entry, Elements begin, Elements count, float* out) const {
  if (begin.value < 0 || count.value < 0 || begin > entry.elements || count > entry.elements - begin)
    throw UsageError(fmt::format("{}: elements [{}, {} + {}) reach outside tensor '{}' of {} elements", impl_->file.path(), begin.value,
                                 begin.value, count.value, entry.name, entry.elements.value));
  const std::uint64_t offset = entry.offset + static_cast<std::uint64_t>(to_bytes(begin, entry.dtype).value);
  switch (entry.dtype) {
    case DType::f32: return impl_->file.read(offset, out, static_cast<std::size_t>(count.value) * sizeof(float));
    case DType::bf16: return read_converted<bf16>(impl_->file, offset, count.value, out);
    case DType::f16: return read_converted<f16>(impl_->file, offset, count.value, out);
    case DType::f64: return read_converted<double>(impl_->file, offset, count.value, out);
    case DType::i64:
    case DType::u8: break;
  }
  throw UsageError(
      fmt::format("{}: tensor '{}' holds {}, which does not read as float", impl_->file.path(), entry.name, name_of(entry.dtype)));
}

}  // namespace tessera
