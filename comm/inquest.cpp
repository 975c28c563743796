#include "comm/inquest.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/recorder.h"

namespace tessera::comm {

namespace {

// A process that shares its core with others must have time to answer, also where the deadline is short.
constexpr std::chrono::milliseconds kLeastNotice{300};

}  // namespace

Clock::time_point time_to_ask(Clock::time_point submitted, Clock::time_point deadline) {
  const auto whole = deadline - submitted;
  const auto at = std::min<Clock::duration>(whole * 17 / 20, whole - kLeastNotice);
  return submitted + std::max<Clock::duration>(at, whole / 2);
}

Clock::time_point time_to_judge(Clock::time_point submitted, Clock::time_point deadline) {
  return submitted + (deadline - submitted) * 19 / 20;
}

Verdict judge(const Inquest& inquest, const std::vector<Rank>& missing) {
  std::vector<Rank> reached = missing;
  Verdict out;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const auto& answer = inquest.answers[static_cast<std::size_t>(reached[i].value)];
    if (!answer) {
      out.silent.push_back(reached[i]);
      continue;
    }
    if (answer->waits_for.empty()) out.culprits.push_back(reached[i]);
    for (const Rank next : answer->waits_for)
      if (std::find(reached.begin(), reached.end(), next) == reached.end()) reached.push_back(next);
  }
  if (!out.silent.empty()) out.culprits = out.silent;
  if (out.culprits.empty()) out.culprits = missing;
  std::sort(out.culprits.begin(), out.culprits.end());
  std::sort(out.silent.begin(), out.silent.end());
  return out;
}

std::string verdict_message(const Verdict& verdict, const Inquest& inquest, const Wait& wait, Rank asking) {
  std::string out = fmt::format("{} did not come to {} within {:.3f} s of rank {}", list_ranks(wait.missing), wait.what,
                                std::chrono::duration<double>(wait.deadline - wait.submitted).count(), asking.value);
  constexpr std::size_t kMostNamed = 8;
  std::size_t named = 0;
  for (const Rank rank : wait.missing) {
    const auto& answer = inquest.answers[static_cast<std::size_t>(rank.value)];
    if (answer && !answer->what.empty() && named++ < kMostNamed) out += fmt::format("; rank {} is in {}", rank.value, answer->what);
  }
  if (!verdict.silent.empty())
    out += fmt::format("; {} did not answer: dead, stopped or cut off from the network", list_ranks(verdict.silent));
  else out += fmt::format("; {} waits for nobody: see what it does, or set a longer deadline", list_ranks(verdict.culprits));
  return out;
}

}  // namespace tessera::comm
