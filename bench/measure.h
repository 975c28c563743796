// How benchmarks measure: terms in turn within one run, medians, and a line of the table and of the JSON for each ratio.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/version.h"

namespace bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// Seconds of one call of f.
template <class F>
double seconds_of(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// One figure per alternation, and its name.
struct Term {
  std::string name;
  std::vector<double> figures;
};

class Table {
 public:
  explicit Table(std::string bench) : bench_(std::move(bench)) {
    fmt::print("{:<52} {:>7} {:>7}   {}\n", "ratio (median over alternations)", "ratio", "target", "terms (medians)");
  }
  /// `above` and `below` were measured in turn: ratios are taken pair by pair. A target of 0: there is none.
  void add(const std::string& name, const std::string& unit, double target, const Term& above, const Term& below) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < above.figures.size(); ++i) ratios.push_back(above.figures[i] / below.figures[i]);
    const double result = median(ratios);
    fmt::print("{:<52} {:>7.3f} {:>7}   {} {:.4g}, {} {:.4g} {}\n", name, result, target > 0 ? fmt::format("{:.2f}", target) : "-",
               above.name, median(above.figures), below.name, median(below.figures), unit);
    ratios_.push_back({{"name", name},
                       {"ratio", result},
                       {"target", target},
                       {"unit", unit},
                       {"numerator", above.name},
                       {"numerators", above.figures},
                       {"denominator", below.name},
                       {"denominators", below.figures}});
  }
  /// Nothing where `path` is empty.
  void write(const std::string& path) const {
    if (path.empty()) return;
    const nlohmann::ordered_json all = {{"version", std::string(tessera::kVersion)}, {"bench", bench_}, {"ratios", ratios_}};
    std::ofstream file(path);
    file << all.dump(1) << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  }

 private:
  std::string bench_;
  nlohmann::ordered_json ratios_ = nlohmann::ordered_json::array();
};

}  // namespace bench
