#include "tests/ranks/rank_launcher.h"

namespace tessera::testing {
namespace {

class ThreadRanks final : public RankLauncher {
 public:
  ThreadRanks(int ranks, const TransportOptions& defaults) : ranks_(ranks), defaults_(defaults) {}

  void run(const std::function<void(World&)>& body, const std::optional<TransportOptions>& options) override {
    run_threads(ranks_, body, options.value_or(defaults_));
  }
  int ranks() const override { return ranks_; }
  int rank_of_process() const override { return 0; }

 private:
  int ranks_;
  TransportOptions defaults_;
};

}  // namespace

std::unique_ptr<RankLauncher> launch_threads(int ranks, const TransportOptions& defaults) {
  return std::make_unique<ThreadRanks>(ranks, defaults);
}

}  // namespace tessera::testing
