#include "examples/gpt/report.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "tessera/version.h"

namespace gpt {
namespace {

using nlohmann::ordered_json;

ordered_json bytes_json(const tessera::MemoryBytes& bytes) {
  ordered_json json;
  for (int c = 0; c < tessera::kCategories; ++c) {
    const auto category = static_cast<tessera::Category>(c);
    json[std::string(tessera::name_of(category))] = bytes[category].value;
  }
  json["total"] = bytes.total.value;
  return json;
}

ordered_json rank_json(const tessera::RankReport& rank, const RankMeasure& measure) {
  return {{"rank", rank.rank.value},
          {"host", rank.host},
          {"peak_bytes", bytes_json(rank.peak)},
          {"forecast_bytes", bytes_json(rank.forecast)},
          {"activations_peak_bytes", measure.activations_peak_bytes},
          {"rss_peak_bytes", measure.rss_peak_bytes},
          {"pss_peak_bytes", measure.pss_peak_bytes},
          {"sent_bytes", rank.traffic.payload_sent.value + rank.traffic.control_sent.value},
          {"received_bytes", rank.traffic.payload_received.value + rank.traffic.control_received.value},
          {"sent_payload_bytes", rank.traffic.payload_sent.value},
          {"received_payload_bytes", rank.traffic.payload_received.value},
          {"plan_misses", rank.plan_misses},
          {"seconds",
           {{"compute", measure.compute_seconds},
            {"exposed_communication", rank.exposed_seconds},
            {"optimizer", rank.optimizer_seconds},
            {"total", rank.total_seconds}}}};
}

// 17 digits give every double back; JSON has no NaN.
std::string exact(double value) { return std::isfinite(value) ? fmt::format("{:.17g}", value) : std::string("null"); }

std::string step_line(const StepRecord& s) {
  return fmt::format(R"({{"step": {}, "loss": {}, "grad_norm": {}, "learning_rate": {}, "seconds": {}, "tokens_per_second": {}, )"
                     R"("speed_of_light": {}, "skipped": {}}})",
                     s.step, exact(s.loss), exact(s.grad_norm), exact(s.learning_rate), exact(s.seconds), exact(s.tokens_per_second),
                     exact(s.speed_of_light), s.skipped);
}

}  // namespace

void write_report(const std::string& path, const Setup& setup, tessera::World& world, const RunReport& run) {
  std::set<std::string> hosts;
  for (const auto& rank : run.ranks) hosts.insert(rank.host);
  ordered_json head;
  head["version"] = std::string(tessera::kVersion);
  head["world_size"] = world.size();
  head["nodes"] = hosts.size();
  head["stage"] = setup.config.stage;
  head["precision"] = "fp32";
  head["transport"] = std::string(world.transport());
  head["parameters"] = setup.model.spec.elements().value;
  head["config"] = ordered_json::parse(flags_json(setup.config));
  head["decisions"] = run.decisions;
  head["validation"] = ordered_json::array();
  ordered_json ranks = ordered_json::array();
  for (std::size_t i = 0; i < run.ranks.size(); ++i) ranks.push_back(rank_json(run.ranks[i], run.measures[i]));

  std::string text = head.dump(1);
  text.resize(text.size() - 2);  // the closing newline and brace: more follows
  text += ",\n \"steps\": [";
  for (std::size_t i = 0; i < run.steps.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + step_line(run.steps[i]);
  text += "\n ],\n \"ranks\": " + ranks.dump(1) + "\n}\n";

  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("--report {}: writing {} bytes failed", path, text.size()));
}

std::string memory_table(const RunReport& run, std::int64_t stage) {
  const tessera::RankReport& rank = run.ranks.front();
  std::string text = fmt::format("bytes on rank 0 at stage {}\n{:<18} {:>16} {:>16}\n", stage, "category", "predicted", "measured");
  for (int c = 0; c < tessera::kCategories; ++c) {
    const auto category = static_cast<tessera::Category>(c);
    text += fmt::format("{:<18} {:>16} {:>16}\n", tessera::name_of(category), rank.forecast[category].value, rank.peak[category].value);
  }
  return text + fmt::format("{:<18} {:>16} {:>16}\n", "total (peak)", rank.forecast.total.value, rank.peak.total.value);
}

}  // namespace gpt
