// A model of ten million parameters: what the report says each rank held, against the forecast, the formula, and what the operating system
// saw.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace {

using namespace tessera::testing;
using nlohmann::json;

json train(const TemporaryFolder& folder, int ranks, int stage, const std::vector<std::string>& sizes,
           const std::string& transport = "mpi") {
  std::vector<std::string> command = {std::string(TESSERA_BINARY_DIR) + "/examples/train_gpt",
                                      "--tokens",
                                      folder / "tokens.bin",
                                      "--steps",
                                      "2",
                                      "--quiet",
                                      "--transport",
                                      transport,
                                      "--batch",
                                      std::to_string(ranks),
                                      "--micro-batch",
                                      "1",
                                      "--stage",
                                      std::to_string(stage),
                                      "--report",
                                      folder / "report.json"};
  command.insert(command.end(), sizes.begin(), sizes.end());
  const Outcome outcome = run_under_mpi(ranks, command, 120);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return json::parse(read_file(folder / "report.json"));
}

const std::vector<std::string> kLarge = {"--layers", "3", "--heads", "8", "--width", "512", "--context", "32", "--vocab", "2048"};
const std::vector<std::string> kNearEmpty = {"--layers", "1", "--heads", "1", "--width", "8", "--context", "32", "--vocab", "2048"};
constexpr std::int64_t kBlock = 12 * 512 * 512 + 13 * 512, kEmbed = (2048 + 32) * 512;

void make_tokens(const TemporaryFolder& folder) {
  std::string tokens;
  for (int i = 0; i < 4000; ++i) tokens += {static_cast<char>(i * 37 % 251), static_cast<char>(i % 8)};
  write_file(folder / "tokens.bin", tokens);
}

}  // namespace

TEST_CASE(
    "memory: ten million parameters: forecast equals ledger at stages 0 to 3 on 1 to 4 ranks, and at stage 3 on 4 the total is a quarter "
    "of the state plus slots") {
  const TemporaryFolder folder;
  make_tokens(folder);
  for (int stage = 0; stage <= 3; ++stage)
    for (int ranks = 1; ranks <= 4; ++ranks) {
      INFO("stage " << stage << ", " << ranks << " ranks");
      const json report = train(folder, ranks, stage, kLarge);
      REQUIRE(report["parameters"].get<std::int64_t>() >= 10'000'000);
      for (const json& rank : report["ranks"]) CHECK(rank["peak_bytes"] == rank["forecast_bytes"]);
      if (stage != 3 || ranks != 4) continue;
      // 16P/4; two slots of parameters and two of gradients of the largest pooled unit; the reused embedding's own slots; 8 MB; padding of
      // 1,024 * W elements in each of its 3 blocks, embedding and final norm, in state and slots.
      const std::int64_t psi = report["parameters"].get<std::int64_t>();
      const std::int64_t padding = 1024 * 4 * 4 * (5 * 4 + 4 + 2);
      const std::int64_t bound = 16 * psi / 4 + 4 * 4 * kBlock + 2 * 4 * kEmbed + 8'000'000 + padding;
      for (const json& rank : report["ranks"]) CHECK(rank["peak_bytes"]["total"].get<std::int64_t>() <= bound);
    }
}

TEST_CASE("memory: what the operating system sees grow with the model is the ledger's total plus activations, within 5% and 16 MB") {
  const TemporaryFolder folder;
  make_tokens(folder);
  for (const int stage : {0, 3})
    for (const int ranks : {1, 4}) {
      INFO("stage " << stage << ", " << ranks << " ranks");
      const json empty = train(folder, ranks, stage, kNearEmpty);
      const json large = train(folder, ranks, stage, kLarge);
      for (int r = 0; r < ranks; ++r) {
        const json& rank = large["ranks"][static_cast<std::size_t>(r)];
        const auto grown =
            rank["rss_peak_bytes"].get<double>() - empty["ranks"][static_cast<std::size_t>(r)]["rss_peak_bytes"].get<double>();
        const double said = rank["peak_bytes"]["total"].get<double>() + rank["activations_peak_bytes"].get<double>();
        const double allowed = 0.05 * said + 16e6;
        CAPTURE(grown);
        CAPTURE(said);
        CHECK(grown <= said + allowed);
        CHECK(grown >= said - allowed);
      }
    }
}

TEST_CASE("memory: over node the ranks' parts of the host's memory add up to one model, its gradient slots, and activations") {
  const TemporaryFolder folder;
  make_tokens(folder);
  for (const int ranks : {2, 4}) {
    INFO(ranks << " ranks");
    const auto sum = [](const json& report, const char* field) {
      double all = 0;
      for (const json& rank : report["ranks"]) all += rank[field].get<double>();
      return all;
    };
    const json empty = train(folder, ranks, 3, kNearEmpty, "node");
    const json large = train(folder, ranks, 3, kLarge, "node");
    REQUIRE(large["transport"] == "node");
    const double grown = sum(large, "pss_peak_bytes") - sum(empty, "pss_peak_bytes");
    // Full parameters exist once: no slots for them. Two slots of gradients of the largest pooled unit, and the reused embedding's own.
    const double slots = ranks * 4.0 * (2 * kBlock + kEmbed);
    const double bound = 1.03 * (16 * large["parameters"].get<double>() + sum(large, "activations_peak_bytes") + slots) + 16e6;
    CAPTURE(bound);
    CHECK(grown <= bound);
    CHECK(grown >= 0.8 * (bound - 16e6));
    for (const json& rank : large["ranks"]) {
      CHECK(rank["peak_bytes"] == rank["forecast_bytes"]);
      CHECK(rank["peak_bytes"]["full_parameters"] == 0);
    }
    MESSAGE(ranks << " ranks: " << grown << " of " << bound);
  }
}
