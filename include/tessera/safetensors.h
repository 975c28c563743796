// The safetensors format: a little-endian u64 header length, a JSON header, then the tensors' bytes without holes.
// The reader reads ranges, never the whole file; the writer writes tensors one after the other, so exporting a model needs memory for one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/types.h"

namespace tessera {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  Elements elements{};
  std::uint64_t offset = 0;  ///< of the first byte, from the start of the file
};

/// An open file whose header has been read and checked in full. Throws CheckpointError, naming path and fault, for a file that is missing,
/// truncated, has trailing bytes, holes, overlaps, offsets that do not match dtype and shape, duplicate names, a dtype this library does
/// not hold, or a header over 100 MB or not JSON.
class TESSERA_API SafetensorsReader {
 public:
  explicit SafetensorsReader(std::string path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;

  const std::vector<SafetensorsEntry>& entries() const;  ///< in order of offset
  const SafetensorsEntry* find(const std::string& name) const;
  /// Elements [begin, begin + count) of `entry`, converted to float, into `out`. Entries of f32, bf16, f16 and f64.
  void read(const SafetensorsEntry& entry, Elements begin, Elements count, float* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes to a temporary name beside `path`; close() syncs it and renames it into place. Without close() nothing is left behind.
/// Tensors must be written in the order and sizes announced. Throws CheckpointError with path and cause, UsageError for a wrong order or
/// size.
class TESSERA_API SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
  };
  SafetensorsWriter(std::string path, std::vector<Tensor> tensors);
  ~SafetensorsWriter();
  void write(const std::string& name, const void* data, Bytes bytes);  ///< may be called several times for consecutive parts of a tensor
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
