// When an operation nears its deadline: the peers are asked whether they live and what they wait for, so that the error names the
// rank that keeps all others waiting. Pure bookkeeping.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/types.h"

namespace tessera::comm {

using Clock = std::chrono::steady_clock;

/// Something a rank waits for.
struct Wait {
  std::string what;  ///< "reduce_scatter #12 of unit 'h.3' ..."
  std::string verb, unit;
  std::vector<Rank> missing;
  Clock::time_point submitted, deadline;
};

/// When the peers are asked, and when the answers are judged: before the deadline is over.
Clock::time_point time_to_ask(Clock::time_point submitted, Clock::time_point deadline);
Clock::time_point time_to_judge(Clock::time_point submitted, Clock::time_point deadline);
/// The least time that peers have to answer, where the question comes late.
inline constexpr std::chrono::milliseconds kTimeToAnswer{100};

struct Answer {
  std::vector<Rank> waits_for;
  std::string what;  ///< what it is in, empty where it waits for nobody
};

struct Inquest {
  std::int32_t number = 0;
  Clock::time_point judge_at;
  std::vector<std::optional<Answer>> answers;  ///< by rank; the asking rank's own is there from the start
};

struct Verdict {
  std::vector<Rank> silent;    ///< did not answer: dead or stopped
  std::vector<Rank> culprits;  ///< the silent ones, else those that wait for nobody, else all that are missing
};

/// Follows who waits for whom, from the missing ranks on.
Verdict judge(const Inquest& inquest, const std::vector<Rank>& missing);

/// "rank 2 did not come to ... within 3.000 s of rank 0; rank 1 is in ...; rank 2 does not answer: ..."
std::string verdict_message(const Verdict& verdict, const Inquest& inquest, const Wait& wait, Rank asking);

}  // namespace tessera::comm
