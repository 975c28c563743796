// What training makes of the link between two hosts, as ratios whose terms are measured in turn within this run, on two namespaced nodes of
// this machine joined by a link of 1 Gbit/s (bench/cluster.sh; needs root):
//
//   all_gather, reduce_scatter over mpi   against   a plain TCP stream both ways on the same link (bytes per second and direction)
//   the longer of compute and wire        against   a stage-3 step, where the wire takes 0.5, 1 and 2 times as long as the compute
//                                               (as many tokens as that takes on this machine; two units are gathered ahead)
//   bytes on the link per step: one rank on each node against two on each
//
// Compute, optimizer included, is what two runs of one rank without communication take side by side; the wire is what the plain TCP
// stream would take for what a rank sends.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/measure.h"
#include "tessera/backends/mpi.h"

namespace {

using namespace tessera;

constexpr std::int64_t kMiB = 1 << 20;

/// One TCP connection between the two ranks, with nothing of ours above it.
class Socket {
 public:
  Socket(Communicator& ranks, const std::string& address) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(37'000);
    Stream stream("meet");
    if (ranks.rank() == Rank(0)) {
      const int on = 1;
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      at.sin_addr.s_addr = INADDR_ANY;
      if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(listener, 1) != 0)
        throw std::runtime_error("cannot listen on port 37000");
      ranks.barrier({}, stream).wait_host();
      fd_ = accept(listener, nullptr, nullptr);
      close(listener);
    } else {
      ranks.barrier({}, stream).wait_host();
      inet_pton(AF_INET, address.c_str(), &at.sin_addr);
      if (connect(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0)
        throw std::runtime_error("cannot connect to port 37000 of " + address);
      fd_ = listener;
    }
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  /// As many bytes each way at once.
  void exchange(const std::byte* out, std::byte* in, std::int64_t bytes) const {
    std::thread sender(
        [&] { whole(bytes, [&](std::int64_t done) { return send(fd_, out + done, static_cast<std::size_t>(bytes - done), 0); }); });
    whole(bytes, [&](std::int64_t done) { return recv(fd_, in + done, static_cast<std::size_t>(bytes - done), 0); });
    sender.join();
  }

 private:
  template <class F>
  static void whole(std::int64_t bytes, const F& some) {
    for (std::int64_t done = 0; done < bytes;) {
      const auto n = some(done);
      if (n <= 0) throw std::runtime_error("the plain TCP stream broke");
      done += n;
    }
  }
  int fd_;
};

void measure(World& world, const std::string& address, int alternations, bench::Table* table) {
  Communicator& whole = world.communicator();
  const auto ranks = whole.split(0, world.rank().value, std::make_shared<MemoryLedger>(), std::chrono::seconds(60));
  const Socket plain(*ranks, address);
  Stream stream("bench");
  const Label control{.channel = Channel::control};
  const auto seconds = [&](const auto& f) {
    ranks->barrier(control, stream).wait_host();
    double took = bench::seconds_of(f);
    ranks->all_reduce({&took}, Elements(1), DType::f64, ReduceOp::max, control, stream).wait_host();
    return took;
  };
  for (const std::int64_t mib : {16, 64}) {
    const std::int64_t per_rank = mib * kMiB / 8, bytes = per_rank * 4;  // of two shards of floats: one crosses the link each way
    std::vector<float> full(static_cast<std::size_t>(2 * per_rank), 1.0f), shard(static_cast<std::size_t>(per_rank), 1.0f);
    bench::Term gather{"ours", {}}, reduce{"ours", {}}, stream_g{"TCP", {}}, stream_r{"TCP", {}};
    const auto tcp = [&] {
      plain.exchange(reinterpret_cast<const std::byte*>(full.data()), reinterpret_cast<std::byte*>(full.data() + per_rank), bytes);
    };
    const auto ours_gather = [&] {
      ranks->all_gather({shard.data()}, {full.data()}, Elements(per_rank), DType::f32, {.channel = Channel::gather}, stream).wait_host();
    };
    const auto ours_reduce = [&] {
      ranks
          ->reduce_scatter({full.data()}, {shard.data()}, Elements(per_rank), DType::f32, Fold::start, {.channel = Channel::reduce}, stream)
          .wait_host();
    };
    for (int i = -1; i < alternations; ++i) {
      const auto b = static_cast<double>(bytes);
      const double g = b / seconds(ours_gather), t1 = b / seconds(tcp), r = b / seconds(ours_reduce), t2 = b / seconds(tcp);
      if (i < 0) continue;
      gather.figures.push_back(g);
      stream_g.figures.push_back(t1);
      reduce.figures.push_back(r);
      stream_r.figures.push_back(t2);
    }
    if (table == nullptr) continue;
    table->add(fmt::format("all_gather, {} MiB, between 2 nodes", mib), "B/s", 0.92, gather, stream_g);
    table->add(fmt::format("reduce_scatter, {} MiB, between 2 nodes", mib), "B/s", 0.92, reduce, stream_r);
  }
}

// --- steps, by running train_gpt ------------------------------------------------------------------------------------------

struct Settings {
  int alternations = 15;
  int steps = 6;
  std::string json, address = "10.77.0.1", count;
  std::vector<std::string> command;
  bool worker = false;
};

struct Run {
  int nodes = 2, ranks_per_node = 1;
  int micro_batch = 2, context = 128, batch = 4;
  int steps = 6;
};

const std::filesystem::path& here() {
  static const std::filesystem::path kPath = std::filesystem::read_symlink("/proc/self/exe");
  return kPath;
}

void must(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("this failed: " + command);
}

std::string train_command(const Run& run, const std::string& folder, const std::string& name, const std::string& transport) {
  const std::string program = (here().parent_path().parent_path() / "examples/train_gpt").string();
  return fmt::format(
      "'{}' --text '{}/text' --layers 8 --heads 8 --width 384 --context {} --micro-batch {} --batch {} --steps {} --stage 3 --prefetch 2 "
      "--quiet "
      "--transport {} --report '{}/{}.json'",
      program, folder, run.context, run.micro_batch, run.batch, run.steps, transport, folder, name);
}

nlohmann::json report_of(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/" + name + ".json");
  return nlohmann::json::parse(file);
}

double seconds_per_step(const nlohmann::json& report) {
  std::vector<double> all;
  for (std::size_t i = 2; i < report.at("steps").size(); ++i) all.push_back(report.at("steps")[i].at("seconds").get<double>());
  return bench::median(all);
}

nlohmann::json train_on_nodes(const Run& run, const std::string& folder) {
  must(fmt::format("'{}' --rate 1gbit --ranks-per-node {} {} -- {}", TESSERA_CLUSTER_SCRIPT, run.ranks_per_node, run.nodes,
                   train_command(run, folder, "nodes", "auto")));
  return report_of(folder, "nodes");
}

/// Of two one-rank runs side by side: the mean of their steps.
double compute_seconds(Run run, const std::string& folder) {
  run.batch = run.micro_batch;
  const auto one = [&](const std::string& name) {
    must(train_command(run, folder, name, "thread"));
    return seconds_per_step(report_of(folder, name));
  };
  auto first = std::async(std::launch::async, one, "first");
  auto second = std::async(std::launch::async, one, "second");
  return 0.5 * (first.get() + second.get());
}

/// Seconds that the plain TCP stream would take for what a rank sends in a step.
double wire_seconds(const nlohmann::json& report, const Run& run, double wire_rate) {
  return report.at("ranks")[0].at("sent_bytes").get<double>() / run.steps / wire_rate;
}

/// A run whose wire time is `share` of its compute time on this machine today: compute grows with the tokens, the wire does not.
Run run_with(double share, double wire, double few_seconds, double many_seconds, int few, int many) {
  const double per_token = (many_seconds - few_seconds) / (many - few);
  const double tokens = std::clamp(few + (wire / share - few_seconds) / per_token, 16.0, 4096.0);
  Run run;
  run.micro_batch = static_cast<int>(std::ceil(tokens / 256.0));
  run.context = std::max(16, static_cast<int>(std::lround(tokens / run.micro_batch / 8.0)) * 8);
  run.batch = 2 * run.micro_batch;
  return run;
}

/// Bytes that node 0 puts on the link in a run.
std::int64_t link_bytes(const Run& run, const std::string& folder) {
  must(fmt::format("'{}' --rate 1gbit --ranks-per-node {} {} -- '{}' --count '{}/count' -- {}", TESSERA_CLUSTER_SCRIPT, run.ranks_per_node,
                   run.nodes, here().string(), folder, train_command(run, folder, "counted", "auto")));
  std::ifstream file(folder + "/count");
  std::int64_t bytes = 0;
  if (!(file >> bytes)) throw std::runtime_error("nobody counted the link's bytes");
  return bytes;
}

/// Sent so far through this node's link.
std::int64_t sent_by_this_node() {
  std::ifstream in("/proc/net/dev");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.find("eth0") > colon) continue;
    std::int64_t fields[9] = {};
    const char* at = line.c_str() + colon + 1;
    for (std::int64_t& field : fields) {
      char* end = nullptr;
      field = std::strtoll(at, &end, 10);
      at = end;
    }
    return fields[8];
  }
  throw std::runtime_error("this node has no eth0; start it through bench/cluster.sh");
}

/// Runs the command; rank 0 writes what its node sent meanwhile.
int count(const Settings& settings) {
  std::string command;
  for (const std::string& word : settings.command) command += "'" + word + "' ";
  const std::int64_t before = sent_by_this_node();
  const int status = std::system(command.c_str());
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank != nullptr && std::string(rank) == "0") {
    std::ofstream file(settings.count);
    file << sent_by_this_node() - before << "\n";
  }
  return status == 0 ? 0 : 1;
}

int start(const Settings& settings) {
  std::string folder = (std::filesystem::temp_directory_path() / "tessera-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
  {
    std::ofstream text(folder + "/text");
    for (int i = 0; i < 200'000; ++i) text << static_cast<char>('a' + i * i % 23);
  }
  must(fmt::format("'{}' --rate 1gbit 2 -- '{}' --worker --pairs {} --json '{}/link.json'", TESSERA_CLUSTER_SCRIPT, here().string(),
                   settings.alternations, folder));
  const nlohmann::json link = report_of(folder, "link");
  double wire_rate = 0.0;
  for (const auto& ratio : link.at("ratios")) wire_rate = std::max(wire_rate, bench::median(ratio.at("denominators")));

  bench::Table table("cluster");
  const int few = 64, many = 256;
  Run probe{.micro_batch = 1, .context = few, .batch = 2};
  probe.steps = settings.steps + 2;
  const double wire_once = wire_seconds(train_on_nodes(probe, folder), probe, wire_rate);
  const double few_seconds = compute_seconds(probe, folder);
  probe.context = many;
  const double many_seconds = compute_seconds(probe, folder);
  struct Contest {
    const char* name;
    double share, target;
  };
  const Contest contests[] = {{"step where the wire takes half as long as the compute", 0.5, 1 / 1.10},
                              {"step where wire and compute take as long", 1.0, 1 / 1.25},
                              {"step where the wire takes twice as long", 2.0, 1 / 1.10}};
  for (const Contest& c : contests) {
    Run run = run_with(c.share, wire_once, few_seconds, many_seconds, few, many);
    run.steps = settings.steps + 2;
    bench::Term bound{"longer of both", {}}, step{"step", {}};
    std::vector<double> shares;
    for (int pair = 0; pair < settings.alternations; ++pair) {
      const nlohmann::json report = train_on_nodes(run, folder);
      const double wire = wire_seconds(report, run, wire_rate);
      const double compute = compute_seconds(run, folder);
      shares.push_back(wire / compute);
      bound.figures.push_back(std::max(wire, compute));
      step.figures.push_back(seconds_per_step(report));
    }
    const double share = bench::median(shares);
    table.add(fmt::format("{} ({:.2f})", c.name, share), "s", c.target, bound, step);
  }

  bench::Term one{"1 rank each", {}}, two{"2 ranks each", {}};
  const auto per_step = [&](int ranks_per_node) {
    Run run{.ranks_per_node = ranks_per_node, .micro_batch = 2 / ranks_per_node};
    run.steps = 2;
    const std::int64_t start_up = link_bytes(run, folder);
    run.steps = 6;
    return static_cast<double>(link_bytes(run, folder) - start_up) / 4.0;
  };
  for (int pair = 0; pair < std::min(3, settings.alternations); ++pair) {
    one.figures.push_back(per_step(1));
    two.figures.push_back(per_step(2));
  }
  table.add("bytes on the link, 1 rank against 2 on each node", "B/step", 1 / 1.02, one, two);
  if (!settings.json.empty()) {
    table.write(settings.json);
    nlohmann::ordered_json all = nlohmann::ordered_json::parse(std::ifstream(settings.json));
    for (const auto& ratio : link.at("ratios")) all["ratios"].push_back(nlohmann::ordered_json(ratio));
    std::ofstream file(settings.json);
    file << all.dump(1) << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + settings.json);
  }
  std::filesystem::remove_all(folder);
  return 0;
}

int work(int argc, char** argv, const Settings& settings) {
  World world = mpi_world(argc, argv);
  if (world.size() != 2) throw std::runtime_error("it takes two ranks, one on each of two hosts");
  std::unique_ptr<bench::Table> table;
  if (world.rank() == Rank(0)) table = std::make_unique<bench::Table>("cluster");
  measure(world, settings.address, settings.alternations, table.get());
  if (table != nullptr) table->write(settings.json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Ratios of training between two hosts, both terms measured in this run", "bench_cluster");
  app.set_version_flag("--version", "bench_cluster " + std::string(kVersion));
  app.add_option("--pairs", settings.alternations, "alternations")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--steps", settings.steps, "steps of each run that count")->check(CLI::Range(1, 100'000))->capture_default_str();
  app.add_option("--json", settings.json, "write the ratios and every figure to this file");
  app.add_flag("--worker", settings.worker, "this process is one of two ranks that measure collectives");
  app.add_option("--address", settings.address, "of rank 0, as rank 1 sees it")->capture_default_str();
  app.add_option("--count", settings.count, "run the command, and write to this file how many bytes the node sent meanwhile");
  app.add_option("command", settings.command, "for --count");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!settings.count.empty()) return count(settings);
    return settings.worker ? work(argc, argv, settings) : start(settings);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_cluster: %s\n", e.what());
    return 1;
  }
}
