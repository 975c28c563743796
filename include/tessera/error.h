// What Tessera throws. Two roots:
//   UsageError      the caller broke a contract; thrown before any communication, or carried to all ranks by the next
//                   arrival so that all of them throw at once. The program can correct itself.
//   RuntimeFailure  the world broke: a peer died or stalled, memory ran out, a file was bad.
// A message says what happened with its values, why that matters, and what to try. What a program may want to act on is a
// data member as well. The library never prints, exits or aborts.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/types.h"

namespace tessera {

class TESSERA_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller broke a documented precondition.
class TESSERA_API UsageError : public Error {
 public:
  using Error::Error;
};

/// Something outside the caller's contract failed.
class TESSERA_API RuntimeFailure : public Error {
 public:
  using Error::Error;
};

/// A collective cannot finish: a peer died, stalled past the deadline, left, or called something else.
/// The communicator it came from is of no further use; destroy the engine.
class TESSERA_API CommFailure : public RuntimeFailure {
 public:
  CommFailure(const std::string& message, std::vector<Rank> culprits_, std::string verb_, std::string unit_, std::string dump_)
      : RuntimeFailure(message), culprits(std::move(culprits_)), verb(std::move(verb_)), unit(std::move(unit_)), dump(std::move(dump_)) {}
  std::vector<Rank> culprits;  ///< the ranks that are missing, or that disagree
  std::string verb;            ///< "reduce_scatter" ...
  std::string unit;            ///< name of the unit, empty for control traffic
  std::string dump;            ///< this rank's last operations, one a line: channel, sequence number, verb, unit, state, peers
};

/// A rank's step was unwound by an exception. All ranks may call Engine::restart_step() and go on.
class TESSERA_API StepInterrupted : public RuntimeFailure {
 public:
  StepInterrupted(const std::string& message, Rank rank_, std::string cause_, std::string verb_, std::string unit_)
      : RuntimeFailure(message), rank(rank_), cause(std::move(cause_)), verb(std::move(verb_)), unit(std::move(unit_)) {}
  Rank rank;          ///< whose step was unwound first
  std::string cause;  ///< what() of its exception, where it is known
  std::string verb;   ///< where this rank was: the operation it waited in, else its last one that belongs to a unit
  std::string unit;   ///< and that operation's unit
};

/// Memory could not be had.
class TESSERA_API OutOfMemory : public RuntimeFailure {
 public:
  OutOfMemory(const std::string& message, Bytes requested_) : RuntimeFailure(message), requested(requested_) {}
  Bytes requested;
};

/// A file of weights or training state is missing, malformed, or cannot be written.
class TESSERA_API CheckpointError : public RuntimeFailure {
 public:
  CheckpointError(const std::string& message, std::string path_) : RuntimeFailure(message), path(std::move(path_)) {}
  std::string path;
};

}  // namespace tessera
