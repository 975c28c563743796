#include "comm/node/words.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tessera::comm::node {

namespace {

template <std::size_t N>
void put(std::array<char, N>& to, const std::string& from) {
  const std::size_t n = std::min(from.size(), N - 1);
  std::memcpy(to.data(), from.data(), n);
  to[n] = '\0';
}

template <std::size_t N>
std::string text(const std::array<char, N>& from) {
  return std::string(from.data(), strnlen(from.data(), N));
}

}  // namespace

FailureRecord record_of(const Failure& failure) {
  FailureRecord out{};
  out.kind = failure.kind;
  out.rank = failure.rank.value;
  out.culprits = static_cast<std::int32_t>(std::min(failure.culprits.size(), out.culprit.size()));
  for (std::int32_t i = 0; i < out.culprits; ++i) {
    const auto at = static_cast<std::size_t>(i);
    out.culprit[at] = failure.culprits[at].value;
  }
  put(out.verb, failure.verb);
  put(out.unit, failure.unit);
  put(out.cause, failure.cause);
  put(out.message, failure.message);
  return out;
}

Failure failure_of(const FailureRecord& record) {
  Failure out;
  out.kind = record.kind;
  out.rank = Rank(record.rank);
  for (std::int32_t i = 0; i < record.culprits; ++i) out.culprits.emplace_back(record.culprit[static_cast<std::size_t>(i)]);
  out.verb = text(record.verb);
  out.unit = text(record.unit);
  out.cause = text(record.cause);
  out.message = text(record.message);
  return out;
}

}  // namespace tessera::comm::node
