#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "shard/file.h"
#include "shard/safetensors_header.h"
#include "shard/shape.h"
#include "tessera/error.h"
#include "tessera/safetensors.h"

namespace tessera {

struct SafetensorsWriter::Impl {
  Impl(std::string path, std::vector<Tensor> announced)
      : tensors(std::move(announced)), plan(shard::plan_safetensors(tensors)), file(std::move(path)) {
    file.write(0, plan.prefix.data(), plan.prefix.size());
  }

  Bytes size_of_current() const { return to_bytes(shard::size_of_shape(tensors[current].shape).elements, tensors[current].dtype); }

  /// Past complete tensors until the one called `name` is current; an empty one is complete from the start.
  void advance_to(const std::string* name) {
    while (current < tensors.size() && (name == nullptr || tensors[current].name != *name) && written == size_of_current()) {
      ++current;
      written = Bytes(0);
    }
  }

  std::string what_is_missing() const {
    return fmt::format("tensor '{}' has {} of {} bytes", tensors[current].name, written.value, size_of_current().value);
  }

  void require_open() const {
    if (closed) throw UsageError(fmt::format("{}: the writer is closed", file.path()));
  }

  std::vector<Tensor> tensors;
  shard::SafetensorsPlan plan;
  shard::OutputFile file;
  std::size_t current = 0;  // the tensor being written
  Bytes written{};          // of it
  bool closed = false;
};

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<Tensor> tensors)
    : impl_(std::make_unique<Impl>(std::move(path), std::move(tensors))) {}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const void* data, Bytes bytes) {
  impl_->require_open();
  impl_->advance_to(&name);
  const std::string& path = impl_->file.path();
  if (impl_->current == impl_->tensors.size())
    throw UsageError(fmt::format("{}: tensor '{}' comes after the last one announced", path, name));
  if (impl_->tensors[impl_->current].name != name)
    throw UsageError(fmt::format("{}: tensor '{}' is out of order: {}", path, name, impl_->what_is_missing()));
  if (bytes.value < 0 || bytes > impl_->size_of_current() - impl_->written)
    throw UsageError(fmt::format("{}: {} bytes do not fit: {}", path, bytes.value, impl_->what_is_missing()));
  impl_->file.write(impl_->plan.offsets[impl_->current] + static_cast<std::uint64_t>(impl_->written.value), data,
                    static_cast<std::size_t>(bytes.value));
  impl_->written += bytes;
}

void SafetensorsWriter::close() {
  impl_->require_open();
  impl_->advance_to(nullptr);
  if (impl_->current < impl_->tensors.size())
    throw UsageError(fmt::format("{}: closed before all was written: {}", impl_->file.path(), impl_->what_is_missing()));
  impl_->file.commit();
  impl_->closed = true;
}

}  // namespace tessera
