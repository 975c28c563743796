#include <doctest/doctest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "tessera/error.h"
#include "tessera/half.h"
#include "tessera/memory.h"

using namespace tessera;

// Sanitizers end the process at an allocation that is too large, unless told to refuse it as operator new does.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the sanitizers' names
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

TEST_CASE("buffer: starts on a 64-byte boundary whatever its size") {
  const auto ledger = std::make_shared<MemoryLedger>();
  for (const std::int64_t bytes : {1, 3, 63, 64, 65, 1023, 4097}) {
    const Buffer b(Bytes(bytes), Category::staging, ledger);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    CHECK(b.bytes() == Bytes(bytes));
    b.data()[bytes - 1] = std::byte{1};
  }
}

TEST_CASE("buffer: is in the ledger from its making until its last copy goes") {
  const auto ledger = std::make_shared<MemoryLedger>();
  {
    Buffer copy;
    {
      const Buffer b(Bytes(1000), Category::gradients, ledger);
      CHECK(ledger->current()[Category::gradients] == Bytes(1000));
      copy = b;
    }
    CHECK(ledger->current()[Category::gradients] == Bytes(1000));
    const std::shared_ptr<const void> owner = copy.owner();
    copy = {};
    CHECK(ledger->current().total == Bytes(1000));
  }
  CHECK(ledger->current() == MemoryBytes{});
  CHECK(ledger->peak()[Category::gradients] == Bytes(1000));
}

TEST_CASE("buffer: of no bytes holds nothing and is not entered") {
  const auto ledger = std::make_shared<MemoryLedger>();
  const Buffer b(Bytes(0), Category::master, ledger);
  CHECK_FALSE(b);
  CHECK(ledger->peak() == MemoryBytes{});
}

TEST_CASE("ledger: outlives its owner while buffers are entered in it") {
  Buffer b;
  {
    const auto ledger = std::make_shared<MemoryLedger>();
    b = Buffer(Bytes(64), Category::moments, ledger);
  }
  CHECK(b.data() != nullptr);
  b = {};
}

TEST_CASE("ledger: the peak of the sum is its own figure, not the sum of the peaks") {
  const auto ledger = std::make_shared<MemoryLedger>();
  {
    const Buffer a(Bytes(100), Category::parameters, ledger);
    const Buffer b(Bytes(10), Category::staging, ledger);
  }
  const Buffer c(Bytes(70), Category::staging, ledger);
  CHECK(ledger->peak()[Category::parameters] == Bytes(100));
  CHECK(ledger->peak()[Category::staging] == Bytes(70));
  CHECK(ledger->peak().total == Bytes(110));
  CHECK(ledger->current().total == Bytes(70));
}

TEST_CASE("ledger: counts right from many threads") {
  const auto ledger = std::make_shared<MemoryLedger>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([ledger] {
      for (int i = 0; i < 500; ++i) {
        const Buffer a(Bytes(3), Category::parameters, ledger);
        const Buffer b = a;
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(ledger->current() == MemoryBytes{});
  CHECK(ledger->peak().total >= Bytes(3));
  CHECK(ledger->peak().total <= Bytes(12));
}

TEST_CASE("buffer: memory that cannot be had is OutOfMemory, naming category and bytes, and is not entered") {
  const auto ledger = std::make_shared<MemoryLedger>();
  const Bytes all(std::int64_t{1} << 62);
  try {
    const Buffer b(all, Category::moments, ledger);
    FAIL("4 EiB were allocated");
  } catch (const OutOfMemory& e) {
    CHECK(e.requested == all);
    CHECK(std::string(e.what()).find("moments") != std::string::npos);
    CHECK(std::string(e.what()).find("4611686018427387904") != std::string::npos);
  }
  CHECK(ledger->peak() == MemoryBytes{});
  CHECK_THROWS_AS(Buffer(Bytes(-1), Category::master, ledger), UsageError);
  CHECK_THROWS_AS(Buffer(Bytes(1), Category::master, nullptr), UsageError);
}

#ifdef TESSERA_POISON
TEST_CASE("poison: fresh memory is NaN in every floating type") {
  const Buffer b(Bytes(801), Category::staging, std::make_shared<MemoryLedger>());
  for (int i = 0; i < 100; ++i) {
    CHECK(std::isnan(b.as<double>()[i]));
    CHECK(std::isnan(b.as<float>()[2 * i + 1]));
    CHECK(std::isnan(static_cast<float>(b.as<bf16>()[4 * i + 3])));
    CHECK(std::isnan(static_cast<float>(b.as<f16>()[4 * i + 3])));
  }
}
#endif
