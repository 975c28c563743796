// The same micro-batch: the same bits, whoever computes it and however the state is sharded.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/reference/gpt_runs.h"

namespace {

using namespace tessera::testing;
using nlohmann::json;

struct Result {
  std::vector<std::pair<double, double>> steps;  // loss, norm
  std::string weights;                           // the exported file
  json ranks;
};

Result train(const TemporaryFolder& folder, Ranks kind, int ranks, int stage, const std::vector<std::string>& extra = {}) {
  std::vector<std::string> arguments = reference_arguments();
  arguments.insert(arguments.end(), {"--steps", "12", "--micro-batch", "1", "--stage", std::to_string(stage), "--report",
                                     folder / "run.json", "--export", folder / "weights.safetensors"});
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  const Outcome outcome = train_gpt(kind, ranks, arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  Result result;
  const json report = read_json(folder / "run.json");
  for (const json& step : report["steps"]) result.steps.emplace_back(step["loss"].get<double>(), step["grad_norm"].get<double>());
  result.weights = read_file(folder / "weights.safetensors");
  result.ranks = report["ranks"];
  REQUIRE(result.steps.size() == 12);
  REQUIRE(result.weights.size() > 390'000);
  return result;
}

TEST_CASE("bits: losses, norms and exported files are the same for stages 0 to 3 on 1, 2, 4 and 8 ranks") {
  const TemporaryFolder folder;
  const Result expected = train(folder, Ranks::threads, 1, 0);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int ranks : {1, 2, 4, 8}) {
      INFO("stage " << stage << ", " << ranks << " threads");
      const Result result = train(folder, Ranks::threads, ranks, stage);
      CHECK((result.steps == expected.steps));
      CHECK((result.weights == expected.weights));
      for (const json& rank : result.ranks) CHECK(rank["peak_bytes"] == rank["forecast_bytes"]);
      for (const json& rank : result.ranks) CHECK(rank["plan_misses"] == 0);
    }
  }
}

#ifdef TESSERA_WITH_MPI
TEST_CASE("bits: processes over node and over mpi give the bits of threads") {
  const TemporaryFolder folder;
  const Result expected = train(folder, Ranks::threads, 1, 0);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto kind : {Ranks::node, Ranks::mpi}) {
      for (const int ranks : {2, 4}) {
        INFO("stage " << stage << ", " << ranks << " processes over " << name_of(kind));
        const Result result = train(folder, kind, ranks, stage);
        CHECK((result.steps == expected.steps));
        CHECK((result.weights == expected.weights));
        for (const json& rank : result.ranks) CHECK(rank["peak_bytes"] == rank["forecast_bytes"]);
      }
    }
  }
}
#endif

TEST_CASE("bits: the prefetch depth changes none") {
  const TemporaryFolder folder;
  const Result expected = train(folder, Ranks::threads, 4, 3);
  for (const char* prefetch : {"0", "2", "7"}) {
    INFO("prefetch " << prefetch);
    const Result result = train(folder, Ranks::threads, 4, 3, {"--prefetch", prefetch});
    CHECK((result.steps == expected.steps));
    CHECK((result.weights == expected.weights));
  }
}

TEST_CASE("bits: every optimizer trains alike at stages 0 and 3") {
  const TemporaryFolder folder;
  for (const char* optimizer : {"adam", "sgd", "adagrad", "lion"}) {
    INFO(optimizer);
    std::vector<std::string> arguments = {"--text",        std::string(TESSERA_SOURCE_DIR) + "/LICENSE",
                                          "--layers",      "2",
                                          "--width",       "32",
                                          "--context",     "16",
                                          "--steps",       "8",
                                          "--micro-batch", "2",
                                          "--quiet",       "--optimizer",
                                          optimizer};
    std::vector<std::string> files;
    for (const int stage : {0, 3}) {
      std::vector<std::string> all = arguments;
      files.push_back(folder / (optimizer + std::to_string(stage)));
      all.insert(all.end(), {"--stage", std::to_string(stage), "--export", files.back()});
      const Outcome outcome = train_gpt(Ranks::threads, stage == 0 ? 1 : 4, all);
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
    }
    CHECK((read_file(files[0]) == read_file(files[1])));
  }
}

}  // namespace
