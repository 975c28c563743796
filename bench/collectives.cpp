// The speed of collectives between processes of one host, as ratios whose terms are measured in turn within this run:
//
//   reduce_scatter over mpi    against   Open MPI's own MPI_Reduce_scatter_block    (bytes of the full buffer per second)
//   all_gather over mpi        against   Open MPI's own MPI_Allgather
//   reduce_scatter over node   against   MPI_Reduce_scatter_block, and against a bare loop that reads and adds the same memory
//   all_gather over node       against   memcpy of as many bytes, into private memory
//
// for full buffers of 16, 64 and 256 MiB, on 2 and on 4 ranks; and how long an engine's gather over node takes, whatever the size. Started
// without mpirun, it starts itself under it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/memory_loop.h"
#include "tessera/backends/mpi.h"
#include "tessera/engine.h"

namespace {

using namespace tessera;

struct Settings {
  int alternations = 15;
  std::string json;
  std::vector<int> ranks = {2, 4};
  std::string transport = "all";
  bool worker = false;
};

constexpr std::int64_t kMiB = 1 << 20;

/// What one rank needs to measure.
class Ranks {
 public:
  explicit Ranks(const World& world)
      : world_(world),
        communicator_(world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), std::chrono::seconds(60))) {}

  int size() const { return world_.size(); }
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
  const World world_;
  std::shared_ptr<Communicator> communicator_;
  Stream stream_{"bench"};
};

/// What is measured for one size. `ours` are the transport's, on memory that suits it.
struct Contest {
  std::string name;
  double target;
  std::function<void()> ours;
  std::string other_name;
  std::function<void()> other;
};

void measure(Ranks& ranks, bench::Table* table, int alternations, double bytes, const std::string& where,
             const std::vector<Contest>& contests) {
  std::vector<bench::Term> ours, others;
  for (const Contest& c : contests) {
    ours.push_back({"ours", {}});
    others.push_back({c.other_name, {}});
  }
  for (int i = -1; i < alternations; ++i)
    for (std::size_t c = 0; c < contests.size(); ++c) {
      const double a = bytes / ranks.seconds(contests[c].ours), b = bytes / ranks.seconds(contests[c].other);
      if (i < 0) continue;  // pages and connections are made
      ours[c].figures.push_back(a);
      others[c].figures.push_back(b);
    }
  if (table == nullptr) return;
  for (std::size_t c = 0; c < contests.size(); ++c)
    table->add(fmt::format("{}, {}", contests[c].name, where), "B/s", contests[c].target, ours[c], others[c]);
}

void reduce_scatter_of_mpi(const float* full, float* shard, std::size_t per_rank) {
  MPI_Reduce_scatter_block(full, shard, static_cast<int>(per_rank), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void measure_mpi(Ranks& ranks, bench::Table* table, int alternations) {
  const auto w = static_cast<std::size_t>(ranks.size());
  for (const std::int64_t mib : {16, 64, 256}) {
    const auto per_rank = static_cast<std::size_t>(mib * kMiB) / sizeof(float) / w;
    std::vector<float> full(per_rank * w, 1.0f), shard(per_rank, 1.0f);
    const Elements count(static_cast<std::int64_t>(per_rank));
    measure(ranks, table, alternations, static_cast<double>(full.size() * sizeof(float)),
            fmt::format("{} MiB, {} ranks, mpi", mib, ranks.size()),
            {{"reduce_scatter", ranks.size() == 2 ? 3.5 : 2.5,
              [&] {
                ranks.communicator()
                    .reduce_scatter({full.data()}, {shard.data()}, count, DType::f32, Fold::start, {.channel = Channel::reduce},
                                    ranks.stream())
                    .wait_host();
              },
              "Open MPI", [&] { reduce_scatter_of_mpi(full.data(), shard.data(), per_rank); }},
             {"all_gather", 1.0,
              [&] {
                ranks.communicator()
                    .all_gather({shard.data()}, {full.data()}, count, DType::f32, {.channel = Channel::gather}, ranks.stream())
                    .wait_host();
              },
              "Open MPI",
              [&] {
                MPI_Allgather(shard.data(), static_cast<int>(per_rank), MPI_FLOAT, full.data(), static_cast<int>(per_rank), MPI_FLOAT,
                              MPI_COMM_WORLD);
              }}});
  }
}

void measure_node(Ranks& ranks, bench::Table* table, int alternations) {
  const auto w = static_cast<std::size_t>(ranks.size());
  const auto rank = static_cast<std::size_t>(ranks.communicator().rank().value);
  for (const std::int64_t mib : {16, 64, 256}) {
    const auto per_rank = static_cast<std::size_t>(mib * kMiB) / sizeof(float) / w;
    const auto bytes = static_cast<std::int64_t>(per_rank * w * sizeof(float));
    const Elements count(static_cast<std::int64_t>(per_rank));
    // A flat of flats, so that the bare loop can look at the peers' memory too.
    const auto ledger = std::make_shared<MemoryLedger>();
    const Communicator::Flat fulls = ranks.communicator().allocate_flat(Bytes(bytes), Category::full_gradients, ledger);
    std::vector<float> shard(per_rank), looped(per_rank), copy(per_rank * w, 1.0f), gathered(per_rank * w, 1.0f);
    auto* full = fulls.shard.as<float>();
    std::fill_n(full, per_rank * w, 1.0f);
    const Region mine{full, fulls.shard.owner()};
    const auto bare_loop = [&] {
      std::vector<const float*> parts;
      for (std::size_t r = 0; r < w; ++r)
        parts.push_back(reinterpret_cast<const float*>(fulls.full + static_cast<std::int64_t>(r) * bytes) + rank * per_rank);
      bench::add(parts.data(), static_cast<int>(w), looped.data(), count.value);
    };
    const auto reduce = [&] {
      ranks.communicator()
          .reduce_scatter({mine.data, mine.owner}, {shard.data()}, count, DType::f32, Fold::start, {.channel = Channel::reduce},
                          ranks.stream())
          .wait_host();
    };
    // Of another flat's shards: what is gathered lies in the segment, what it is gathered into does not.
    const auto gather = [&] {
      ranks.communicator()
          .all_gather({full, mine.owner}, {gathered.data()}, count, DType::f32, {.channel = Channel::gather}, ranks.stream())
          .wait_host();
    };
    const auto copy_alone = [&] { std::memcpy(copy.data(), full, static_cast<std::size_t>(bytes)); };
    measure(ranks, table, alternations, static_cast<double>(bytes), fmt::format("{} MiB, {} ranks, node", mib, ranks.size()),
            {{"reduce_scatter", 5.0, reduce, "Open MPI", [&] { reduce_scatter_of_mpi(full, looped.data(), per_rank); }},
             {"reduce_scatter", 0.8, reduce, "bare loop", bare_loop},
             {"bare loop (disturbed below 6.5)", 6.5, bare_loop, "Open MPI", [&] { reduce_scatter_of_mpi(full, shard.data(), per_rank); }},
             {"all_gather", 0.9, gather, "memcpy", copy_alone}});
  }
}

// A gather through a lease: from asking for the unit to having its views.
void measure_lease(const World& world, bench::Table* table) {
  for (const std::int64_t mib : {1, 16, 256}) {
    ModelSpec spec;
    const UnitId unit = spec.unit("h").tensor("w", {mib * kMiB / 4});
    Engine engine(world, spec, {.optimizer = Sgd{}});
    bench::Term ours{"20 us", {}}, most{"gather", {}};
    for (int i = -10; i < 200; ++i) {
      std::optional<ParameterLease> lease;
      const double took = bench::seconds_of([&] { lease.emplace(engine.gather(unit)); });
      if (i < 0) continue;
      ours.figures.push_back(20e-6);
      most.figures.push_back(took);
    }
    if (table != nullptr)
      table->add(fmt::format("gather through a lease, {} MiB, {} ranks, node", mib, world.size()), "s", 1.0, ours, most);
  }
}

int work(int argc, char** argv, const Settings& settings) {
  World met = mpi_world(argc, argv);
  World shared = node_world(met);
  std::unique_ptr<bench::Table> table;
  if (met.rank() == Rank(0)) table = std::make_unique<bench::Table>("collectives");
  if (settings.transport != "mpi") {
    Ranks ranks(shared);
    measure_node(ranks, table.get(), settings.alternations);
    measure_lease(shared, table.get());
  }
  if (settings.transport != "node") {
    Ranks ranks(met);
    measure_mpi(ranks, table.get(), settings.alternations);
  }
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
    const std::string command =
        fmt::format("mpirun --oversubscribe --bind-to none -np {} '{}' --worker --transport {} --pairs {}{}", n, self, settings.transport,
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
  app.add_option("--transport", settings.transport, "which one")->check(CLI::IsMember({"all", "node", "mpi"}))->capture_default_str();
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
