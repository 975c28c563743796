// Prints what train_gpt's reports say about memory: bytes per rank by category, one column per report, predicted above measured.
// Ends with 1 where they differ on any rank.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/version.h"

namespace {

using nlohmann::json;

constexpr const char* kCategories[] = {"parameters",     "master",        "moments", "gradients", "full_parameters",
                                       "full_gradients", "communication", "staging", "total"};

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<std::size_t>(i), 1, ',');
  return digits;
}

json read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return json::parse(file);
}

/// The rank that holds most.
const json& largest(const json& report) {
  const json* found = nullptr;
  for (const json& rank : report.at("ranks"))
    if (found == nullptr || rank.at("peak_bytes").at("total") > found->at("peak_bytes").at("total")) found = &rank;
  if (found == nullptr) throw std::runtime_error("a report without ranks");
  return *found;
}

int differences(const json& report) {
  int count = 0;
  for (const json& rank : report.at("ranks"))
    for (const char* category : kCategories)
      if (rank.at("peak_bytes").at(category) != rank.at("forecast_bytes").at(category)) ++count;
  return count;
}

int print(const std::vector<std::string>& paths) {
  std::vector<json> reports;
  for (const std::string& path : paths) reports.push_back(read(path));

  fmt::print("{:<27}", fmt::format("bytes per rank, {} ranks", reports.front().at("world_size").get<int>()));
  for (const json& report : reports) fmt::print("{:>14}", fmt::format("stage {}", report.at("stage").get<int>()));
  fmt::print("\n");
  for (const char* category : kCategories)
    for (const auto& [key, word] : {std::pair("forecast_bytes", "predicted"), std::pair("peak_bytes", "measured")}) {
      fmt::print("{:<17}{:<10}", word == std::string_view("predicted") ? category : "", word);
      for (const json& report : reports) fmt::print("{:>14}", grouped(largest(report).at(key).at(category).get<std::int64_t>()));
      fmt::print("\n");
    }

  int unequal = 0;
  for (const json& report : reports) unequal += differences(report);
  if (unequal == 0) fmt::print("predicted = measured, to the byte, on every rank\n");
  else fmt::print("predicted and measured differ in {} places\n", unequal);
  return unequal == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Bytes per rank, by category, predicted and measured, from reports of train_gpt");
  std::vector<std::string> paths;
  app.add_option("reports", paths, "files written by train_gpt --report")->required();
  app.set_version_flag("--version", std::string(tessera::kVersion));
  try {
    app.parse(argc, argv);
    return print(paths);
  } catch (const CLI::ParseError& e) { return app.exit(e) == 0 ? 0 : 2; } catch (const std::exception& e) {
    fmt::print(stderr, "memory_table: {}\n", e.what());
    return 2;
  }
}
