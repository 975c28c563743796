#include "runtime/arrival.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::runtime {
namespace {

const char* name_of(ArrivalKind kind) {
  switch (kind) {
    case ArrivalKind::setup: return "the engine's construction";
    case ArrivalKind::memory: return "the engine's allocation";
    case ArrivalKind::initialize: return "initialize";
    case ArrivalKind::set: return "set";
    case ArrivalKind::step: return "step";
  }
  return "?";
}

}  // namespace

void ArrivalRecord::say(const std::string& words) {
  const std::size_t n = std::min(words.size(), text.size() - 1);
  std::copy_n(words.data(), n, text.data());
  text[n] = '\0';
}

std::vector<std::byte> exchange(Context& context, const void* mine, std::size_t size, const char* what) {
  const auto ranks = static_cast<std::size_t>(context.communicator().size());
  const auto all = std::make_shared<std::vector<std::byte>>(ranks * size);
  std::byte* own = all->data() + static_cast<std::size_t>(context.communicator().rank().value) * size;
  std::memcpy(own, mine, size);
  Pending pending = context.communicator().all_gather({own, all}, {all->data(), all}, Elements(static_cast<std::int64_t>(size)), DType::u8,
                                                      context.label(Channel::control, kNoUnit), context.stream(Channel::control));
  context.wait(pending, what, kNoUnit);
  return *all;
}

void arrive(Context& context, const ArrivalRecord& mine, const std::vector<std::int32_t>& reduced) {
  const std::vector<std::byte> bytes = exchange(context, &mine, sizeof mine, "wait arrival");
  std::vector<ArrivalRecord> all(bytes.size() / sizeof mine);
  std::memcpy(all.data(), bytes.data(), bytes.size());

  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].error == ArrivalError::none) continue;
    const std::string message = fmt::format("rank {}: {}", r, all[r].text.data());
    if (all[r].error == ArrivalError::out_of_memory) throw OutOfMemory(message, Bytes(static_cast<std::int64_t>(all[r].subject)));
    throw UsageError(message);
  }
  const ArrivalRecord& first = all.front();
  for (std::size_t r = 1; r < all.size(); ++r) {
    const ArrivalRecord& other = all[r];
    const auto message = [&](const std::string& a, const std::string& b, const char* advice) {
      return fmt::format("ranks differ at {}: rank 0 {}, rank {} {}; {}", name_of(first.kind), a, r, b, advice);
    };
    if (other.kind != first.kind)
      throw RanksDiverged(message(fmt::format("calls {}", name_of(first.kind)), fmt::format("calls {}", name_of(other.kind)),
                                  "make the same calls on every rank"));
    if (other.leaves != first.leaves)
      throw RanksDiverged(message(fmt::format("had {} micro-batches", first.leaves), fmt::format("{}", other.leaves),
                                  "give every rank the same number of micro-batches in a step"));
    if (other.gathers != first.gathers)
      throw RanksDiverged(message(fmt::format("made {} gathers", first.gathers), fmt::format("{}", other.gathers),
                                  "lease the same units in the same order on every rank"));
    if (other.leased != first.leased)
      throw RanksDiverged(message("leased parameters in one order", "in another", "lease the same units in the same order on every rank"));
    if (other.reductions != first.reductions) {
      // All ranks see this, so all come to the second exchange.
      const std::vector<std::byte> counts = exchange(context, reduced.data(), reduced.size() * sizeof(std::int32_t), "wait arrival");
      std::string unit = "?";
      for (std::size_t u = 0; u < reduced.size() && unit == "?"; ++u) {
        std::int32_t a = 0, b = 0;
        std::memcpy(&a, counts.data() + u * sizeof a, sizeof a);
        std::memcpy(&b, counts.data() + (r * reduced.size() + u) * sizeof b, sizeof b);
        if (a != b) unit = context.name(UnitId(static_cast<int>(u)));
      }
      throw RanksDiverged(message(fmt::format("made {} gradient reductions", first.reductions),
                                  fmt::format("{} (unit '{}' is the first to differ)", other.reductions, unit),
                                  "give the same units gradients on every rank, or declare a unit optional()"));
    }
    if (other.subject != first.subject) throw UsageError(message("sets one tensor", "another", "set the same tensor on every rank"));
    if (other.spec != first.spec) throw UsageError(message("has one model", "another", "build the same ModelSpec on every rank"));
    if (other.options != first.options)
      throw UsageError(
          message(fmt::format("has {}", first.text.data()), fmt::format("{}", other.text.data()), "give every rank the same options"));
  }
}

}  // namespace tessera::runtime
