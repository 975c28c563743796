#include "tessera/memory.h"

#include <algorithm>
#include <new>
#include <string>

#include "core/mutex.h"
#include "tessera/error.h"

namespace tessera {

namespace {

constexpr std::align_val_t kAlignment{64};

[[noreturn]] void throw_out_of_memory(Bytes bytes, Category category) {
  throw OutOfMemory("no memory for " + std::to_string(bytes.value) + " bytes of " + std::string(name_of(category)) +
                        "; lower the memory budget, use a higher stage or more ranks",
                    bytes);
}

#ifdef TESSERA_POISON
// A quiet NaN in f16, bf16, f32 and f64 alike, so that memory read before it is written shows in every result.
void poison(std::byte* data, std::size_t bytes) {
  constexpr unsigned char pattern[2] = {0xf8, 0x7f};
  for (std::size_t i = 0; i < bytes; ++i) data[i] = std::byte{pattern[i % 2]};
}
#endif

}  // namespace

struct MemoryLedger::Impl {
  mutable core::Mutex mutex;
  MemoryBytes current TESSERA_GUARDED_BY(mutex);
  MemoryBytes peak TESSERA_GUARDED_BY(mutex);
};

MemoryLedger::MemoryLedger() : impl_(std::make_unique<Impl>()) {}
MemoryLedger::~MemoryLedger() = default;

void MemoryLedger::add(Category category, Bytes bytes) {
  const core::MutexLock lock(impl_->mutex);
  impl_->current[category] += bytes;
  impl_->current.total += bytes;
  impl_->peak[category] = std::max(impl_->peak[category], impl_->current[category]);
  impl_->peak.total = std::max(impl_->peak.total, impl_->current.total);
}

void MemoryLedger::remove(Category category, Bytes bytes) {
  const core::MutexLock lock(impl_->mutex);
  impl_->current[category] -= bytes;
  impl_->current.total -= bytes;
}

MemoryBytes MemoryLedger::current() const {
  const core::MutexLock lock(impl_->mutex);
  return impl_->current;
}

MemoryBytes MemoryLedger::peak() const {
  const core::MutexLock lock(impl_->mutex);
  return impl_->peak;
}

Buffer::Buffer(Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) : bytes_(bytes) {
  if (bytes.value < 0) throw UsageError("a Buffer of " + std::to_string(bytes.value) + " bytes was asked for (fewer than none)");
  if (ledger == nullptr)
    throw UsageError("a Buffer of " + std::string(name_of(category)) + " was asked for without a ledger to enter it in");
  if (bytes.value == 0) return;
  const auto size = static_cast<std::size_t>(bytes.value);
  auto* memory = static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
  if (memory == nullptr) throw_out_of_memory(bytes, category);
  ledger->add(category, bytes);
  try {
    // The deleter also runs where the control block itself cannot be had.
    data_ = std::shared_ptr<std::byte>(memory, [bytes, category, ledger](std::byte* p) {
      ::operator delete(p, kAlignment);
      ledger->remove(category, bytes);
    });
  } catch (const std::bad_alloc&) { throw_out_of_memory(bytes, category); }
#ifdef TESSERA_POISON
  poison(data_.get(), size);
#endif
}

Buffer::Buffer(std::shared_ptr<std::byte> memory, Bytes bytes, Category category, std::shared_ptr<MemoryLedger> ledger) : bytes_(bytes) {
  if (ledger == nullptr)
    throw UsageError("a Buffer of " + std::string(name_of(category)) + " was asked for without a ledger to enter it in");
  std::byte* const at = memory.get();
  ledger->add(category, bytes);
  data_ = std::shared_ptr<std::byte>(at, [memory = std::move(memory), bytes, category, ledger](std::byte*) mutable {
    memory.reset();
    ledger->remove(category, bytes);
  });
}

}  // namespace tessera
