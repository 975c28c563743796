// The life of a unit, as two small state machines: one for its parameters, one for its gradients. All legal transitions stand here; an
// illegal one is a bug in the runtime and throws std::logic_error.
//
//   parameters:  sharded --gather--> gathering --arrive--> gathered --lease--> leased
//                   ^------------------release---------------'  ^----close-------'
//                (gathering --release--> sharded: a gather that an interrupted step or an eviction drops)
//   gradients:   idle --open--> open --reduce--> reducing --finish--> idle
//                (open --drop--> idle, reducing --drop--> idle: an interrupted step)
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera::runtime {

enum class ParameterState : std::uint8_t {
  sharded,    ///< memory: the shard
  gathering,  ///< memory: the shard and a slot that is being written
  gathered,   ///< memory: the shard and a slot that may be read; no lease
  leased,     ///< memory: the shard and a slot that may not be given up
};
enum class ParameterEvent : std::uint8_t { gather, arrive, lease, close, release };

enum class GradientState : std::uint8_t {
  idle,      ///< memory: the shard (the sum so far)
  open,      ///< memory: the shard and a slot the caller adds to
  reducing,  ///< memory: the shard and a slot that is being read by all ranks
};
enum class GradientEvent : std::uint8_t { open, reduce, finish, drop };

constexpr std::string_view name_of(ParameterState s) {
  constexpr std::string_view names[] = {"sharded", "gathering", "gathered", "leased"};
  return names[static_cast<int>(s)];
}
constexpr std::string_view name_of(GradientState s) {
  constexpr std::string_view names[] = {"idle", "open", "reducing"};
  return names[static_cast<int>(s)];
}

namespace detail {
inline constexpr int kIllegal = -1;
// Rows: states, columns: events.
inline constexpr int kParameterTable[4][5] = {
    /* sharded   */ {/*gather*/ 1, /*arrive*/ kIllegal, /*lease*/ kIllegal, /*close*/ kIllegal, /*release*/ kIllegal},
    /* gathering */ {kIllegal, 2, kIllegal, kIllegal, 0},
    /* gathered  */ {kIllegal, kIllegal, 3, kIllegal, 0},
    /* leased    */ {kIllegal, kIllegal, kIllegal, 2, kIllegal},
};
inline constexpr int kGradientTable[3][4] = {
    /* idle     */ {/*open*/ 1, /*reduce*/ kIllegal, /*finish*/ kIllegal, /*drop*/ kIllegal},
    /* open     */ {kIllegal, 2, kIllegal, 0},
    /* reducing */ {kIllegal, kIllegal, 0, 0},
};
}  // namespace detail

constexpr bool legal(ParameterState s, ParameterEvent e) {
  return detail::kParameterTable[static_cast<int>(s)][static_cast<int>(e)] != detail::kIllegal;
}
constexpr bool legal(GradientState s, GradientEvent e) {
  return detail::kGradientTable[static_cast<int>(s)][static_cast<int>(e)] != detail::kIllegal;
}

/// The state after `e`; throws std::logic_error where the table has none.
constexpr ParameterState next(ParameterState s, ParameterEvent e) {
  const int to = detail::kParameterTable[static_cast<int>(s)][static_cast<int>(e)];
  if (to == detail::kIllegal) throw std::logic_error("parameters are " + std::string(name_of(s)) + ": no such transition");
  return static_cast<ParameterState>(to);
}
constexpr GradientState next(GradientState s, GradientEvent e) {
  const int to = detail::kGradientTable[static_cast<int>(s)][static_cast<int>(e)];
  if (to == detail::kIllegal) throw std::logic_error("gradients are " + std::string(name_of(s)) + ": no such transition");
  return static_cast<GradientState>(to);
}

}  // namespace tessera::runtime
