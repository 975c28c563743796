// What the parts of one engine share: spec, options, communicator, streams, the place in the training run, and the time spent
// waiting.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/communicator.h"
#include "tessera/model_spec.h"
#include "tessera/options.h"
#include "tessera/stream.h"

namespace tessera::runtime {

using Clock = std::chrono::steady_clock;

class Context {
 public:
  Context(const ModelSpec& spec, const Options& options, std::shared_ptr<Communicator> communicator)
      : spec_(spec), options_(options), communicator_(std::move(communicator)) {}

  const ModelSpec& spec() const { return spec_; }
  const Options& options() const { return options_; }
  Communicator& communicator() { return *communicator_; }
  /// Where the channel's next operation is enqueued. Two take turns, so that the transport has the next gather (or reduction) in hand while
  /// the last is under way; nothing here relies on the order of a channel's operations but the channel itself.
  Stream& stream(Channel channel) {
    const auto c = static_cast<std::size_t>(channel);
    return streams_[2 * c + next_stream_[c]++ % 2];
  }

  std::int64_t step = 0;   ///< steps begun so far
  std::int64_t leaf = -1;  ///< this rank's micro-batch within the step; -1 outside
  std::int64_t misses = 0;

  Label label(Channel channel, UnitId unit, int use = 0, std::uint64_t detail = 0) const {
    return {channel, unit, step, leaf, use, detail};
  }
  const std::string& name(UnitId unit) const { return spec_[unit].name; }

  /// Blocks the caller until `pending` is over; the time counts as exposed communication.
  void wait(Pending& pending, std::string_view what, UnitId unit) {
    if (pending.done()) {
      pending.wait_host();  // throws what failed
      return;
    }
    const Clock::time_point begin = Clock::now();
    const auto account = [&] {
      const Clock::time_point end = Clock::now();
      exposed_ += end - begin;
      span(what, unit, begin, end);
    };
    try {
      pending.wait_host();
    } catch (...) {
      account();
      throw;
    }
    account();
  }
  void span(std::string_view what, UnitId unit, Clock::time_point begin, Clock::time_point end) const {
    if (!options_.observer) return;
    try {
      options_.observer->span(what, unit, begin, end);
    } catch (...) {  // spans end in destructors too: an observer's own trouble is not the step's
    }
  }
  double exposed_seconds() const { return std::chrono::duration<double>(exposed_).count(); }

 private:
  const ModelSpec& spec_;
  const Options& options_;
  std::shared_ptr<Communicator> communicator_;
  Clock::duration exposed_{};
  std::array<std::size_t, kChannels> next_stream_{};
  std::array<Stream, 2 * kChannels> streams_{Stream("gather 0"), Stream("gather 1"),  Stream("reduce 0"),
                                             Stream("reduce 1"), Stream("control 0"), Stream("control 1")};
};

}  // namespace tessera::runtime
