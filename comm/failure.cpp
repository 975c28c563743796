#include "comm/failure.h"

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::comm {

void raise(const Failure& failure, const Whereabouts& where, const std::string& dump) {
  if (failure.kind == FailureKind::interrupted) {
    const std::string at = where.description.empty() ? std::string() : fmt::format("; this rank was in {}", where.description);
    throw StepInterrupted(failure.message + at, failure.rank, failure.cause, where.verb, where.unit);
  }
  // Whoever found it may not have been in an operation: then what this rank was in.
  const bool knows = !failure.verb.empty();
  throw CommFailure(failure.message, failure.culprits, knows ? failure.verb : where.verb, knows ? failure.unit : where.unit, dump);
}

Failure interruption(Rank rank, const std::string& cause) {
  Failure failure;
  failure.kind = FailureKind::interrupted;
  failure.rank = rank;
  failure.cause = cause;
  failure.message = fmt::format("rank {} interrupted the step ({}); all ranks may resume and repeat it", rank.value, cause);
  return failure;
}

}  // namespace tessera::comm
