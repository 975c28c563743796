// The speed of collectives between processes of one host, as ratios whose two terms are measured in turn within this run:
//
//   reduce_scatter over mpi   against   Open MPI's own MPI_Reduce_scatter_block    (bytes of the full buffer per second)
//   all_gather over mpi       against   Open MPI's own MPI_Allgather               (bytes of the full buffer per second)
//
// for full buffers of 16, 64 and 256 MiB, on 2 and on 4 ranks. Started without mpirun, it starts itself under it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "tessera/backends/mpi.h"

namespace {

using namespace tessera;

struct Settings {
  int alternations = 15;
  std::string json;
  std::vector<int> ranks = {2, 4};
  bool worker = false;
};

constexpr std::int64_t kMiB = 1 << 20;

/// What one rank needs to measure.
class Ranks {
 public:
  explicit Ranks(World& world)
      : world_(world),
        communicator_(world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), std::chrono::seconds(60))) {}

  int size() const { return world_.size(); }
  bool first() const { return world_.rank() == Rank(0); }
  Communicator& communicator() { return *communicator_; }
  Stream& stream() { return stream_; }

  /// Seconds of f, from when all ranks begin to when the last has ended.
  double seconds(const std::function<void()>& f) {
    communicator_->barrier(control(), stream_).wait_host();
    double took = bench::seconds_of(f);
    communicator_->all_reduce({&took}, Elements(1), DType::f64, ReduceOp::max, control(), stream_).wait_host();
    return took;
  }

 private:
  static Label control() { return {.channel = Channel::control}; }
  World& world_;
  std::shared_ptr<Communicator> communicator_;
  Stream stream_{"bench"};
};

void measure(Ranks& ranks, bench::Table* table, int alternations) {
  const auto w = static_cast<std::size_t>(ranks.size());
  for (const std::int64_t mib : {16, 64, 256}) {
    const auto shard_elements = static_cast<std::size_t>(mib * kMiB) / sizeof(float) / w;
    std::vector<float> full(shard_elements * w, 1.0f), shard(shard_elements, 1.0f);
    const Elements count(static_cast<std::int64_t>(shard_elements));
    const auto bytes = static_cast<double>(full.size() * sizeof(float));
    const auto reduce = [&] {
      ranks.communicator()
          .reduce_scatter({full.data()}, {shard.data()}, count, DType::f32, Fold::start, {.channel = Channel::reduce}, ranks.stream())
          .wait_host();
    };
    const auto gather = [&] {
      ranks.communicator()
          .all_gather({shard.data()}, {full.data()}, count, DType::f32, {.channel = Channel::gather}, ranks.stream())
          .wait_host();
    };
    const auto of_mpi_reduce = [&] {
      MPI_Reduce_scatter_block(full.data(), shard.data(), static_cast<int>(shard_elements), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    const auto of_mpi_gather = [&] {
      MPI_Allgather(shard.data(), static_cast<int>(shard_elements), MPI_FLOAT, full.data(), static_cast<int>(shard_elements), MPI_FLOAT,
                    MPI_COMM_WORLD);
    };
    bench::Term ours_reduce{"ours", {}}, theirs_reduce{"Open MPI", {}}, ours_gather{"ours", {}}, theirs_gather{"Open MPI", {}};
    for (int i = -1; i < alternations; ++i) {
      const double a = bytes / ranks.seconds(reduce), b = bytes / ranks.seconds(of_mpi_reduce);
      const double c = bytes / ranks.seconds(gather), d = bytes / ranks.seconds(of_mpi_gather);
      if (i < 0) continue;  // pages and connections are made
      ours_reduce.figures.push_back(a);
      theirs_reduce.figures.push_back(b);
      ours_gather.figures.push_back(c);
      theirs_gather.figures.push_back(d);
    }
    if (table == nullptr) continue;
    const std::string where = fmt::format("{} MiB, {} ranks, mpi", mib, ranks.size());
    table->add("reduce_scatter, " + where, "B/s", ranks.size() == 2 ? 3.5 : 2.5, ours_reduce, theirs_reduce);
    table->add("all_gather, " + where, "B/s", 1.0, ours_gather, theirs_gather);
  }
}

int work(int argc, char** argv, const Settings& settings) {
  World world = mpi_world(argc, argv);
  Ranks ranks(world);
  std::unique_ptr<bench::Table> table;
  if (ranks.first()) table = std::make_unique<bench::Table>("collectives");
  measure(ranks, table.get(), settings.alternations);
  if (table != nullptr) table->write(settings.json);
  return 0;
}

/// Starts this program under mpirun for each number of ranks and joins what they write.
int start(const Settings& settings) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  nlohmann::ordered_json all;
  for (const int n : settings.ranks) {
    const std::string part = settings.json.empty() ? std::string() : fmt::format("{}.{}", settings.json, n);
    const std::string command = fmt::format("mpirun --oversubscribe --bind-to none -np {} '{}' --worker --pairs {}{}", n, self,
                                            settings.alternations, part.empty() ? std::string() : fmt::format(" --json '{}'", part));
    if (std::system(command.c_str()) != 0) throw std::runtime_error("this failed: " + command);
    if (part.empty()) continue;
    std::ifstream file(part);
    const auto found = nlohmann::ordered_json::parse(file);
    if (all.empty()) all = found;
    else all["ratios"].insert(all["ratios"].end(), found["ratios"].begin(), found["ratios"].end());
    std::filesystem::remove(part);
  }
  if (settings.json.empty()) return 0;
  std::ofstream file(settings.json);
  file << all.dump(1) << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write " + settings.json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Ratios of the speed of collectives, both terms measured in this run", "bench_collectives");
  app.set_version_flag("--version", "bench_collectives " + std::string(kVersion));
  app.add_option("--pairs", settings.alternations, "alternations")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--ranks", settings.ranks, "numbers of ranks")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--json", settings.json, "write the ratios and every figure to this file");
  app.add_flag("--worker", settings.worker, "this process is a rank");
  CLI11_PARSE(app, argc, argv);
  try {
    return settings.worker ? work(argc, argv, settings) : start(settings);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_collectives: %s\n", e.what());
    return 1;
  }
}
