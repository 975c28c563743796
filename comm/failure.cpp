#include "comm/failure.h"

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::comm {

void raise(const Failure& failure, const std::string& dump) {
  if (failure.kind == FailureKind::interrupted) throw StepInterrupted(failure.message, failure.rank, failure.cause);
  throw CommFailure(failure.message, failure.culprits, failure.verb, failure.unit, dump);
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
