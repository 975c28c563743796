#include "comm/node/platform.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace tessera::comm::node {

void Platform::sleep(Word32& word, std::uint32_t seen, std::chrono::steady_clock::time_point until) {
  using std::chrono::nanoseconds;
  const auto left = std::chrono::duration_cast<nanoseconds>(until - std::chrono::steady_clock::now());
  if (left.count() <= 0) return;
  const std::int64_t ns = left.count();
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void Platform::wake(Word32& word) { syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace tessera::comm::node
