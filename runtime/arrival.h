// All ranks meet before anything that changes state: each brings a record, each sees all records, so all come to the same verdict at once.
// A rank that found a usage error brings it along instead of leaving its peers to wait.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/context.h"
#include "tessera/error.h"

namespace tessera::runtime {

enum class ArrivalKind : std::int32_t { setup, memory, initialize, set, step };
enum class ArrivalError : std::int32_t { none, usage, out_of_memory };

struct ArrivalRecord {
  ArrivalKind kind{};
  ArrivalError error = ArrivalError::none;
  std::int64_t leaves = 0;
  std::uint64_t leased = 0;  ///< fingerprint of the order of leases that no gather compares
  std::int64_t gathers = 0;  ///< sequence numbers submitted so far
  std::int64_t reductions = 0;
  std::uint64_t spec = 0;  ///< fingerprints
  std::uint64_t options = 0;
  std::uint64_t subject = 0;     ///< of set: which tensor; of out_of_memory: bytes
  std::array<char, 184> text{};  ///< of the error, or the options in words

  void say(const std::string& words);
};
static_assert(std::is_trivially_copyable_v<ArrivalRecord>);

/// Ranks have made different calls, so that operations of some have no counterpart: the step cannot go on, but all can restart it.
class RanksDiverged : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Collective; blocks. Returns once all ranks have come with compatible records; else throws on every rank the same: the lowest rank's own
/// error, or UsageError naming what differs between which ranks.
/// `reduced`: this rank's gradient reductions by unit, to name the one that differs.
void arrive(Context& context, const ArrivalRecord& mine, const std::vector<std::int32_t>& reduced = {});

/// Collective; blocks. Every rank's `size` bytes, in rank order.
std::vector<std::byte> exchange(Context& context, const void* mine, std::size_t size, const char* what);

}  // namespace tessera::runtime
