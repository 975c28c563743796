// Streams order asynchronous work, as in CUDA. A host stream is a real queue with a worker thread, so that what would be a
// race on a GPU is a race here too and ThreadSanitizer sees it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/types.h"

namespace tessera {

/// A point in a stream. Copies share. A default-constructed Event is complete.
class TESSERA_API Event {
 public:
  Event() = default;
  bool complete() const;
  void wait_host() const;  ///< Blocks the caller until the point is reached.

 private:
  friend class Stream;
  struct State;
  std::shared_ptr<State> state_;
};

/// Runs what is enqueued in order, one item at a time, on a worker of its own. Thread-safe. The destructor finishes the queue.
class TESSERA_API Stream {
 public:
  explicit Stream(std::string name);  ///< shown by debuggers and traces
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Does not block. `work` must not throw.
  void enqueue(std::function<void()> work);
  Event record();                 ///< complete when everything enqueued so far has run
  void wait(const Event& event);  ///< what is enqueued later runs after `event`
  void synchronize();             ///< blocks the caller until the queue is empty
  const std::string& name() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
