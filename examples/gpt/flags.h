// A table of command-line flags: one line per flag drives parsing, range checks, --help and the report's `config`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// A value's legal range, both ends included.
template <class T>
struct Range {
  T least;
  T most;
};

class FlagTable {
 public:
  explicit FlagTable(CLI::App& app) : app_(app) {}
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  void whole(const std::string& name, std::int64_t& value, const std::string& help, Range<std::int64_t> range);
  void real(const std::string& name, double& value, const std::string& help, Range<double> range);
  void text(const std::string& name, std::string& value, const std::string& help);
  void choice(const std::string& name, std::string& value, const std::string& help, std::vector<std::string> allowed);
  void list(const std::string& name, std::vector<std::string>& values, const std::string& help);
  void on(const std::string& name, bool& value, const std::string& help);

  bool given(const std::string& name) const;
  /// Reads the command line. Returns what is wrong with it, in one line that names the flag and the fix; empty if nothing is.
  std::string parse(int argc, const char* const* argv);
  /// Every flag's value, by name without dashes.
  nlohmann::ordered_json values() const;

 private:
  CLI::Option* add(const std::string& name, const std::function<void(const std::string&)>& read, const std::string& help);

  CLI::App& app_;
  std::vector<std::pair<std::string, std::function<nlohmann::ordered_json()>>> values_;
};

}  // namespace gpt
