// Whole runs of train_gpt: the report, files that lead back in, failures after training began.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace {

using namespace tessera::testing;
using nlohmann::json;

const std::string kText = std::string(TESSERA_SOURCE_DIR) + "/LICENSE";
const std::string kInit = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/gpt_tiny_init.safetensors";

Outcome train(int ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {std::string(TESSERA_BINARY_DIR) + "/examples/train_gpt", "--text", kText, "--threads", std::to_string(ranks)});
  return run_program(arguments);
}

std::vector<std::string> small(const std::vector<std::string>& extra) {
  std::vector<std::string> all = {"--layers", "2", "--heads", "2", "--width", "16", "--context", "16", "--batch", "12"};
  all.insert(all.end(), extra.begin(), extra.end());
  return all;
}

TEST_CASE("train_gpt: the report has every field, the forecast is kept, and the loss falls") {
  const TemporaryFolder folder;
  const Outcome outcome = train(3, small({"--steps", "30", "--lr", "1e-2", "--micro-batch", "2", "--report", folder / "r.json"}));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out.find("step     30/30") != std::string::npos);
  const json report = json::parse(read_file(folder / "r.json"));
  for (const char* field : {"version", "world_size", "nodes", "stage", "precision", "transport", "parameters", "config", "decisions",
                            "validation", "steps", "ranks"}) {
    INFO(field);
    CHECK(report.contains(field));
  }
  CHECK(report["world_size"] == 3);
  CHECK(report["nodes"] == 1);
  CHECK(report["transport"] == "thread");
  CHECK(report["precision"] == "fp32");
  CHECK(report["parameters"] == (256 + 16 + 2) * 16 + 2 * (12 * 16 * 16 + 13 * 16));
  REQUIRE(report["steps"].size() == 30);
  for (const char* field : {"step", "loss", "grad_norm", "learning_rate", "seconds", "tokens_per_second", "speed_of_light", "skipped"}) {
    INFO(field);
    CHECK(report["steps"][0].contains(field));
  }
  CHECK(report["steps"][0]["loss"].get<double>() == doctest::Approx(5.545).epsilon(0.05));  // ln 256
  CHECK(report["steps"][29]["loss"].get<double>() < report["steps"][0]["loss"].get<double>() - 1.0);
  REQUIRE(report["ranks"].size() == 3);
  for (const json& rank : report["ranks"]) {
    CHECK(rank["peak_bytes"] == rank["forecast_bytes"]);
    for (const char* field :
         {"parameters", "master", "moments", "gradients", "full_parameters", "full_gradients", "communication", "staging", "total"}) {
      INFO(field);
      CHECK(rank["peak_bytes"].contains(field));
    }
    for (const char* field : {"rank", "host", "activations_peak_bytes", "rss_peak_bytes", "pss_peak_bytes", "sent_bytes", "received_bytes",
                              "plan_misses", "seconds"}) {
      INFO(field);
      CHECK(rank.contains(field));
    }
    for (const char* field : {"compute", "exposed_communication", "optimizer", "total"}) CHECK(rank["seconds"][field].get<double>() >= 0.0);
    CHECK(rank["plan_misses"] == 0);
    CHECK(rank["sent_bytes"].get<std::int64_t>() > 0);
    CHECK(rank["rss_peak_bytes"].get<std::int64_t>() > rank["peak_bytes"]["total"].get<std::int64_t>());
    CHECK(rank["pss_peak_bytes"].get<std::int64_t>() > 0);
  }
}

TEST_CASE("train_gpt: losses are written so that they read back to the same bits") {
  const TemporaryFolder folder;
  REQUIRE(train(1, small({"--steps", "1", "--quiet", "--report", folder / "r.json"})).code == 0);
  const std::string text = read_file(folder / "r.json");
  const std::size_t at = text.find("\"loss\": ") + 8;
  CHECK(text.substr(at, text.find(',', at) - at).size() >= 17);
}

TEST_CASE("train_gpt: exported weights lead back in, and name neither world, time nor path") {
  const TemporaryFolder folder;
  const std::vector<std::string> run = {"--heads", "4", "--steps", "3", "--batch", "8", "--micro-batch", "2", "--quiet"};
  const auto with = [&](std::vector<std::string> extra) {
    extra.insert(extra.end(), run.begin(), run.end());
    return extra;
  };
  REQUIRE(train(2, with({"--init", kInit, "--lr", "0", "--min-lr", "0", "--export", folder / "a"})).code == 0);
  CHECK(read_file(folder / "a").find(TESSERA_SOURCE_DIR) == std::string::npos);
  REQUIRE(train(4, with({"--init", folder / "a", "--lr", "0", "--min-lr", "0", "--stage", "1", "--export", folder / "b"})).code == 0);
  CHECK((read_file(folder / "a") == read_file(folder / "b")));
}

TEST_CASE("train_gpt: the same sample of text on any number of ranks, and nothing else on stdout when quiet") {
  std::string expected;
  for (const int ranks : {1, 3, 4}) {
    const Outcome outcome =
        train(ranks, small({"--steps", "12", "--micro-batch", "1", "--sample", "40", "--quiet", "--stage", ranks == 4 ? "0" : "3"}));
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(outcome.out.size() == 41);
    if (expected.empty()) expected = outcome.out;
    CHECK((outcome.out == expected));
  }
  CHECK((train(1, small({"--steps", "12", "--micro-batch", "1", "--sample", "40", "--quiet", "--seed", "2"})).out != expected));
}

TEST_CASE("train_gpt: a NaN stops the run with code 1, or is skipped on request") {
  const TemporaryFolder folder;
  std::string weights = read_file(kInit);
  const float nan = std::nanf("");
  std::memcpy(weights.data() + weights.size() - 4, &nan, 4);  // the last element of ln_f.bias
  write_file(folder / "nan", weights);
  const std::vector<std::string> run = {"--init", folder / "nan", "--heads",  "4",         "--steps", "2", "--batch",
                                        "4",      "--quiet",      "--report", folder / "r"};
  const Outcome stopped = train(2, run);
  CHECK(stopped.code == 1);
  CHECK(stopped.err.find("train_gpt: rank ") != std::string::npos);
  std::vector<std::string> on = run;
  on.insert(on.end(), {"--on-nan", "continue"});
  const Outcome went_on = train(2, on);
  INFO(went_on.err);
  REQUIRE(went_on.code == 0);
  const json report = json::parse(read_file(folder / "r"));
  for (const json& step : report["steps"]) CHECK(step["skipped"] == true);
  CHECK(report["steps"][0]["loss"].is_null());
}

TEST_CASE("train_gpt: the trace is JSON with a process for each rank and the gathers of each unit") {
  const TemporaryFolder folder;
  REQUIRE(train(2, small({"--steps", "2", "--quiet", "--trace", folder / "t.json"})).code == 0);
  const json trace = json::parse(read_file(folder / "t.json"));
  for (const int rank : {0, 1}) {
    int gathers = 0;
    int leaves = 0;
    for (const json& event : trace["traceEvents"]) {
      if (event["pid"] != rank) continue;
      gathers += event["name"] == "all_gather h.1" ? 1 : 0;
      if (event.contains("ts")) {
        ++leaves;
        CHECK(event["ts"].get<double>() > 0.0);
        CHECK(event["dur"].get<double>() >= 0.0);
      }
    }
    CHECK(gathers >= 2);
    CHECK(leaves > 4);
  }
}

}  // namespace
