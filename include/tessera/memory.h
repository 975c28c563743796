// Where the bytes are. Tensor data, slots, the scratch of an engine's communicator and staging are Buffers; every Buffer is entered in one
// MemoryLedger under a category when it is made and struck out when the last reference goes. Control structures (plans,
// queues, records) are not in the ledger. The forecast uses the same categories: on host transports the two agree to the byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/types.h"

namespace tessera {

enum class Category : std::uint8_t {
  parameters,       ///< what the model reads: whole at stages 0 to 2, this rank's shard at stage 3
  master,           ///< fp32 copy the optimizer updates, where parameters have another type
  moments,          ///< optimizer state
  gradients,        ///< what the optimizer reads: accumulated over leaves and ranks
  full_parameters,  ///< slots a unit is gathered into
  full_gradients,   ///< slots a unit's gradients are written into before they are reduced
  communication,    ///< the transport's scratch
  staging,          ///< copies on the way to or from the caller, files, devices
};
inline constexpr int kCategories = 8;

constexpr std::string_view name_of(Category c) {
  constexpr std::array<std::string_view, kCategories> names = {"parameters",      "master",         "moments",       "gradients",
                                                               "full_parameters", "full_gradients", "communication", "staging"};
  return names[static_cast<std::size_t>(c)];
}

/// Bytes by category. `total` is its own figure: as a peak it is the peak of the sum, not the sum of the peaks.
struct MemoryBytes {
  std::array<Bytes, kCategories> by_category{};
  Bytes total{};

  constexpr Bytes& operator[](Category c) { return by_category[static_cast<std::size_t>(c)]; }
  constexpr Bytes operator[](Category c) const { return by_category[static_cast<std::size_t>(c)]; }
  friend bool operator==(const MemoryBytes&, const MemoryBytes&) = default;
};

/// Counts of one rank. Thread-safe. Outlives the buffers entered in it (they share ownership).
class TESSERA_API MemoryLedger {
 public:
  MemoryLedger();
  ~MemoryLedger();
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  void add(Category category, Bytes bytes);
  void remove(Category category, Bytes bytes);
  MemoryBytes current() const;
  MemoryBytes peak() const;  ///< since construction

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Shared ownership of one allocation, 64-byte aligned. Copies share; the memory goes with the last copy, so that a pending
/// operation can own what it touches. A default-constructed Buffer has no bytes.
class TESSERA_API Buffer {
 public:
  Buffer() = default;
  /// Host memory, not initialised in release builds, filled with NaN patterns in builds with TESSERA_POISON.
  /// Throws OutOfMemory naming the category and the bytes.
  Buffer(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger);
  /// Memory that somebody else has made, entered in the ledger until the last reference goes.
  Buffer(std::shared_ptr<std::byte> memory, Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger);

  std::byte* data() const { return data_.get(); }
  Bytes bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  explicit operator bool() const { return data_ != nullptr; }
  const std::shared_ptr<std::byte>& owner() const { return data_; }

 private:
  std::shared_ptr<std::byte> data_;
  Bytes bytes_{};
};

}  // namespace tessera
