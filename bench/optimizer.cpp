// The speed of the loops over elements, as ratios whose two terms are measured in turn within this run:
//
//   AdamW's fused step from main memory   against   a loop with the same reads and writes and no arithmetic   (bytes per second)
//   the portable build                    against   the same loops compiled with -march=native                 (elements per second)
//   the best instruction set              against   the lowest one, in L2                                      (elements per second)
//
// The native loops are those of native_optimizer: this program linked with them, which runs in turn with this one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/memory_loop.h"
#include "comm/fold.h"
#include "core/isa.h"
#include "shard/norm.h"
#include "shard/optimizer.h"
#include "tessera/half.h"

namespace {

using namespace tessera;

constexpr std::int64_t kInCache = 16'384;             // elements
constexpr std::int64_t kInMemory = 16 * 1024 * 1024;  // elements of each of four arrays: 256 MiB together
constexpr int kRanks = 4;                             // whose contributions are folded

/// Calls of f per second, over at least `seconds`.
double rate(double seconds, const std::function<void()>& f) {
  f();
  std::int64_t calls = 1;
  for (;;) {
    const double took = bench::seconds_of([&] {
      for (std::int64_t i = 0; i < calls; ++i) f();
    });
    if (took >= seconds) return static_cast<double>(calls) / took;
    calls *= 2;
  }
}

/// Memory as an engine's buffers are: 64-byte aligned. And no two start at the same place of a page: whether they do would depend on the
/// allocator, and costs up to a third.
template <class T>
class Array {
 public:
  explicit Array(std::int64_t n, T value = {}) : size_(n) {
    static std::int64_t made = 0;
    const std::int64_t skip = 64 * (made++ * 5 % 64);
    memory_ = Buffer(to_bytes(Elements(n), kType) + Bytes(skip), Category::staging, std::make_shared<MemoryLedger>());
    data_ = reinterpret_cast<T*>(memory_.data() + skip);
    std::fill_n(data_, n, value);
  }
  T* data() { return data_; }
  std::int64_t size() const { return size_; }

 private:
  static constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  Buffer memory_;
  T* data_;
  std::int64_t size_;
};

struct AdamState {
  explicit AdamState(std::int64_t n) : p(n, 1.0f), g(n, 0.001f), m(n), v(n) {}
  void step() {
    shard::update(AdamW{}, {.learning_rate = 1e-4f, .step = ++steps, .gradient_scale = 0.5f},
                  {p.data(), g.data(), {m.data(), v.data(), nullptr}, Elements(p.size())});
  }
  Array<float> p, g, m, v;
  std::int64_t steps = 0;
};

/// Elements per second of each loop at a size that stays in the second-level cache.
std::map<std::string, double> in_cache(double seconds) {
  std::map<std::string, double> out;
  AdamState adam(kInCache);
  out["AdamW"] = kInCache * rate(seconds, [&] { adam.step(); });
  shard::ExactSum sum;
  out["norm"] = kInCache * rate(seconds, [&] { shard::add_norm(sum, adam.g.data(), Elements(kInCache), 0.5f, 2); });
  Array<bf16> half(kInCache, bf16(0.25f));
  Array<float> single(kInCache, 0.25f);
  Array<float> result(kInCache);
  const auto fold = [&](const void* contribution, DType from, void* to, DType into, int ranks) {
    const std::array<const void*, kRanks> all{contribution, contribution, contribution, contribution};
    comm::fold_sum(std::span(all).first(static_cast<std::size_t>(ranks)), from, to, into, Elements(kInCache), Fold::start);
  };
  out["fold of fp32"] = kInCache * rate(seconds, [&] { fold(single.data(), DType::f32, result.data(), DType::f32, kRanks); });
  out["fold of bf16"] = kInCache * rate(seconds, [&] { fold(half.data(), DType::bf16, result.data(), DType::f32, kRanks); });
  out["cast to bf16 (a fold of one)"] = kInCache * rate(seconds, [&] { fold(half.data(), DType::bf16, half.data(), DType::bf16, 1); });
  return out;
}

double adam_in_memory(AdamState& state) {
  return kInMemory / bench::seconds_of([&] { state.step(); });
}

/// What native_optimizer measures now.
std::map<std::string, double> of_native_build() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string command = "'" + (here / "native_optimizer").string() + "' --figures";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  if (text.empty()) throw std::runtime_error("this gave nothing: " + command);
  return nlohmann::json::parse(text).get<std::map<std::string, double>>();
}

std::map<std::string, double> figures() {
  std::map<std::string, double> out = in_cache(0.02);
  AdamState state(kInMemory);
  state.step();
  out["AdamW in memory"] = adam_in_memory(state);
  return out;
}

void measure(int alternations, const std::string& json) {
  bench::Table table("optimizer");
  bench::Term adam{"AdamW", {}};
  bench::Term bare{"bare loop", {}};
  {
    AdamState state(kInMemory);
    constexpr double kBytes = 7.0 * sizeof(float) * kInMemory;  // four arrays read, three written
    for (int i = -1; i < alternations; ++i) {
      const double a = adam_in_memory(state) / kInMemory * kBytes;
      const double b =
          kBytes / bench::seconds_of([&] { bench::touch(state.p.data(), state.g.data(), state.m.data(), state.v.data(), kInMemory); });
      if (i < 0) continue;  // the first touches the pages
      adam.figures.push_back(a);
      bare.figures.push_back(b);
    }
  }
  table.add("AdamW fused step, main memory", "B/s", 0.9, adam, bare);

  std::map<std::string, std::array<bench::Term, 4>> terms;  // portable, native; best, lowest
  for (int i = 0; i < alternations; ++i) {
    const auto add = [&](std::size_t which, const std::string& name, const std::map<std::string, double>& found) {
      for (const auto& [loop, figure] : found) {
        terms[loop][which].name = name;
        terms[loop][which].figures.push_back(figure);
      }
    };
    add(0, "portable", figures());
    add(1, "native", of_native_build());
    add(2, std::string(core::name_of(core::isa())), in_cache(0.02));
    const core::ForcedIsa lowest(core::Isa::baseline);
    add(3, "baseline", in_cache(0.02));
  }
  for (const auto& [loop, t] : terms) {
    const bool memory = loop == "AdamW in memory";
    table.add("portable build, " + loop, "elements/s", memory ? 0.95 : 0.90, t[0], t[1]);
  }
  for (const auto& [loop, t] : terms)
    if (loop != "AdamW in memory")
      table.add("instruction set, " + loop, "elements/s", loop == "norm" || loop.starts_with("cast") ? 2.0 : 1.0, t[2], t[3]);
  table.write(json);
}

}  // namespace

int main(int argc, char** argv) {
  int alternations = 15;
  std::string json;
  bool only_figures = false;
  CLI::App app("Ratios of the speed of the loops over elements, both terms measured in this run", "bench_optimizer");
  app.set_version_flag("--version", "bench_optimizer " + std::string(kVersion));
  app.add_option("--pairs", alternations, "alternations")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--json", json, "write the ratios and every figure to this file");
  app.add_flag("--figures", only_figures, "print this build's figures once, as JSON, and nothing else");
  CLI11_PARSE(app, argc, argv);
  try {
    if (only_figures) fmt::print("{}\n", nlohmann::json(figures()).dump());
    else measure(alternations, json);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_optimizer: %s\n", e.what());
    return 1;
  }
}
