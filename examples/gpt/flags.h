// A table of command-line flags: one line per flag drives parsing, range checks, --help and the report's `config`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt {

/// A value's legal range, both ends included.
template <class T>
struct Range {
  T least;
  T most;
};

/// What came of reading a command line.
struct Parsed {
  std::string error;     ///< one line that names the flag and the fix; empty if nothing is wrong
  std::string printout;  ///< of --help and --version
};

class FlagTable {
 public:
  FlagTable(const std::string& program, const std::string& description, const std::string& version);
  ~FlagTable();
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  void whole(const std::string& name, std::int64_t& value, const std::string& help, Range<std::int64_t> range);
  void real(const std::string& name, double& value, const std::string& help, Range<double> range);
  void text(const std::string& name, std::string& value, const std::string& help);
  void choice(const std::string& name, std::string& value, const std::string& help, std::vector<std::string> allowed);
  void list(const std::string& name, std::vector<std::string>& values, const std::string& help);
  void on(const std::string& name, bool& value, const std::string& help);

  Parsed parse(int argc, const char* const* argv);
  bool given(const std::string& name) const;
  /// Every flag's value, by name without dashes, as one JSON object.
  std::string json() const;

 private:
  struct Impl;  // CLI11 and the JSON library take long to compile: one file knows them
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpt
