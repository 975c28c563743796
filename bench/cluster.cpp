// What the link between two hosts leaves to be wished, as ratios whose terms are measured in turn within this run:
//
//   all_gather, reduce_scatter over mpi   against   a plain TCP stream both ways on the same link   (bytes per second and direction)
//
// Run it on two nodes: `./run bench cluster` makes two namespaced nodes of this machine joined by a link of 1 Gbit/s. One rank on each.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
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
    std::thread sender([&] { whole(bytes, [&](std::int64_t done) { return send(fd_, out + done, static_cast<std::size_t>(bytes - done), 0); }); });
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
      ranks->reduce_scatter({full.data()}, {shard.data()}, Elements(per_rank), DType::f32, Fold::start, {.channel = Channel::reduce}, stream)
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

}  // namespace

int main(int argc, char** argv) {
  int alternations = 15;
  std::string json, address = "10.77.0.1";
  CLI::App app("Ratios of the speed of collectives between two hosts, both terms measured in this run", "bench_cluster");
  app.set_version_flag("--version", "bench_cluster " + std::string(kVersion));
  app.add_option("--pairs", alternations, "alternations")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--address", address, "of rank 0, as rank 1 sees it")->capture_default_str();
  app.add_option("--json", json, "write the ratios and every figure to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    World world = mpi_world(argc, argv);
    if (world.size() != 2) throw std::runtime_error("it takes two ranks, one on each of two hosts: ./run cluster --rate 1gbit 2 -- bench_cluster");
    std::unique_ptr<bench::Table> table;
    if (world.rank() == Rank(0)) table = std::make_unique<bench::Table>("cluster");
    measure(world, address, alternations, table.get());
    if (table != nullptr) table->write(json);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_cluster: %s\n", e.what());
    return 1;
  }
}
