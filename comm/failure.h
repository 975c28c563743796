// Why operations of a communicator cannot finish, as a value: each thread that throws it makes an exception of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/types.h"

namespace tessera::comm {

enum class FailureKind : std::uint8_t {
  failed,       ///< CommFailure: the communicator is of no further use
  interrupted,  ///< StepInterrupted: until all ranks have resumed
};

struct Failure {
  FailureKind kind = FailureKind::failed;
  std::string message;
  std::vector<Rank> culprits;  ///< failed: ranks that are missing or disagree
  std::string verb;            ///< failed: of the operation that could not finish
  std::string unit;            ///< failed: its unit
  Rank rank;                   ///< interrupted: who was first
  std::string cause;           ///< interrupted: why
};

/// Where a rank was when it learned of a failure.
struct Whereabouts {
  std::string verb;
  std::string unit;         ///< empty where no operation belongs to a unit yet
  std::string description;  ///< "reduce_scatter #12 of unit 'h.3' ..."
};

/// Throws the exception that `failure` describes.
[[noreturn]] void raise(const Failure& failure, const Whereabouts& where, const std::string& dump);

/// What a rank that interrupts tells the others.
Failure interruption(Rank rank, const std::string& cause);

}  // namespace tessera::comm
