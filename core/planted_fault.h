// Faults planted on purpose, to prove that the test suite sees them. Only a build with TESSERA_PLANTED_FAULTS=ON contains any;
// there the environment variable TESSERA_PLANTED_FAULT names the one that is active. Elsewhere planted() is the constant false.
#pragma once

#include <cstdlib>
#include <iterator>
#include <string_view>

namespace tessera::core {

enum class Fault {
  none,
  skipped_wait,      // a gather is used before it is over
  fold_from_copy,    // a reduction starts from the first contribution instead of +0
  dirty_padding,     // padding of a shard is not zeroed
  stale_slot,        // a gradient slot is assumed clean
  reversed_ranks,    // contributions are added in falling rank order
  shard_off_by_one,  // a rank owns one element of its neighbour
  lost_micro_batch,  // the last micro-batch of a step is dropped
  tied_norm_twice,   // the norm counts a reused unit twice
  budget_overrun,    // one slot more than the plan has
  dropped_deadline,  // a wait has no deadline
};

#ifdef TESSERA_PLANTED_FAULTS
inline bool planted(Fault fault) {
  static const Fault active = [] {
    constexpr std::string_view names[] = {"none",
                                          "skipped_wait",
                                          "fold_from_copy",
                                          "dirty_padding",
                                          "stale_slot",
                                          "reversed_ranks",
                                          "shard_off_by_one",
                                          "lost_micro_batch",
                                          "tied_norm_twice",
                                          "budget_overrun",
                                          "dropped_deadline"};
    const char* wanted = std::getenv("TESSERA_PLANTED_FAULT");
    for (int i = 0; wanted != nullptr && i < static_cast<int>(std::size(names)); ++i)
      if (names[i] == wanted) return static_cast<Fault>(i);
    return Fault::none;
  }();
  return active == fault;
}
#else
constexpr bool planted(Fault) { return false; }
#endif

}  // namespace tessera::core
