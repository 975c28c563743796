// A timeline of a run in Chrome's trace format (chrome://tracing, Perfetto): one process per rank; one row for what the caller did, one per
// channel.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/model_spec.h"
#include "tessera/options.h"
#include "tessera/world.h"

namespace gpt {

class Trace final : public tessera::Observer {
 public:
  explicit Trace(const tessera::ModelSpec& spec);

  void operation(const tessera::OperationRecord& record) override;
  void span(std::string_view what, tessera::UnitId unit, std::chrono::steady_clock::time_point begin,
            std::chrono::steady_clock::time_point end) override;

  /// Collective. Rank 0 writes the events of all ranks. Throws on rank 0 where it cannot.
  void write(tessera::World& world, const std::string& path);

 private:
  void add(std::string name, int row, std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end);
  std::string name_of(tessera::UnitId unit) const;

  struct Event {
    std::string name;
    int row;
    std::chrono::steady_clock::time_point begin, end;
  };
  std::vector<std::string> units_;
  std::mutex mutex_;  // operations end on worker threads
  std::vector<Event> events_;
};

}  // namespace gpt
