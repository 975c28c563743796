// Which failure it is: what the peers' counters and headers say about who keeps whom waiting, in words.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "comm/node/context.h"

namespace tessera::comm::node {

std::string Context::described(const OperationIdentity& operation) const {
  return describe(operation, recorder_->unit_name(operation.label.unit));
}

Failure Context::failure_in(const OperationIdentity& operation) const {
  Failure out;
  out.verb = name_of(operation.verb);
  out.unit = recorder_->unit_name(operation.label.unit);
  return out;
}

std::optional<Failure> Context::disagreement(const Operation& operation, Rank peer) const {
  if (peer == rank_) return std::nullopt;
  const OperationIdentity& other = words_(peer.value).headers[index_of(operation.label.channel)][operation.sequence % 2].identity;
  if (other.matches(operation)) return std::nullopt;
  const bool peer_first = peer < rank_;
  const OperationIdentity& first = peer_first ? other : operation;
  const OperationIdentity& second = peer_first ? operation : other;
  Failure failure = failure_in(first);
  failure.culprits = {std::min(peer, rank_), std::max(peer, rank_)};
  failure.message = disagreement_message(failure.culprits[0], described(first), failure.culprits[1], described(second));
  return failure;
}

std::optional<Failure> Context::departure(const Operation& operation, const std::vector<Rank>& absent) const {
  for (const Rank peer : absent) {
    const RankWords& words = words_(peer.value);
    if (Platform::load(words.left) == 0) continue;
    const std::int64_t calls = words.left_after[index_of(operation.label.channel)];
    if (operation.sequence < calls) continue;
    Failure failure = failure_in(operation);
    failure.culprits = {peer};
    failure.message = departure_message(peer, calls, operation.label.channel, rank_, described(operation));
    return failure;
  }
  return std::nullopt;
}

Failure Context::out_of_turn(const Operation& operation) const {
  Failure failure = failure_in(operation);
  failure.culprits = {rank_};
  failure.message = out_of_turn_message(rank_, described(operation), operation);
  return failure;
}

Answer Context::waits_of(Rank rank, Rank asking, const Operation& operation) const {
  Answer out;
  for (std::size_t c = 0; c < kChannels; ++c) {
    const std::uint64_t begun = gate_.begun(rank.value, c);
    if (begun == 0) continue;
    std::vector<Rank> missing;
    for (int r = 0; r < size(); ++r)
      if (gate_.begun(r, c) < begun) missing.emplace_back(r);
    if (missing.empty()) continue;
    if (rank == asking) {
      out.what = described(operation);
    } else if (out.what.empty()) {
      out.what = described(words_(rank.value).headers[c][(begun - 1) % 2].identity);
    }
    out.waits_for.insert(out.waits_for.end(), missing.begin(), missing.end());
  }
  return out;
}

Failure Context::lateness_of_earliest(const Operation& operation, const std::vector<Rank>& absent) const {
  std::shared_ptr<Operation> earliest;
  if (operation.label.unit == kNoUnit) {
    const core::MutexLock lock(mutex_);
    for (const auto& other : operations_)
      if (other->label.unit != kNoUnit && other->submitted <= operation.submitted && !missing_in(*other).empty() &&
          (earliest == nullptr || other->submitted < earliest->submitted))
        earliest = other;
  }
  return earliest != nullptr ? lateness(*earliest, missing_in(*earliest)) : lateness(operation, absent);
}

std::vector<Rank> Context::missing_in(const Operation& operation) const {
  std::vector<Rank> out;
  for (int r = 0; r < size(); ++r)
    if (gate_.begun(r, index_of(operation.label.channel)) <= static_cast<std::uint64_t>(operation.sequence)) out.emplace_back(r);
  return out;
}

Failure Context::lateness(const Operation& operation, const std::vector<Rank>& absent) const {
  Inquest inquest;
  for (int r = 0; r < size(); ++r) inquest.answers.emplace_back(waits_of(Rank(r), rank_, operation));
  const Verdict verdict = judge(inquest, absent);
  Wait wait;
  wait.what = described(operation);
  wait.missing = absent;
  wait.submitted = operation.submitted;
  wait.deadline = operation.deadline;
  Failure failure = failure_in(operation);
  failure.culprits = verdict.culprits;
  failure.message = verdict_message(verdict, inquest, wait, rank_);
  return failure;
}

Failure Context::slowness(const Operation& operation, const std::vector<Rank>& moving) const {
  Failure failure = failure_in(operation);
  failure.culprits = moving;
  failure.message = fmt::format("{} came to {} but did not move its data within {:.3f} s of rank {}: stopped, or set a longer deadline",
                                list_ranks(moving), described(operation), seconds(operation.deadline - operation.submitted), rank_.value);
  return failure;
}

}  // namespace tessera::comm::node
