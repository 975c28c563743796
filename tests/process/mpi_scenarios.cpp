// One rank of a program that meets the MPI transport as programs do: killed, stopped, thrown out; beside a caller's own MPI; started by a
// launcher of another MPI. Run under mpirun by mpi_transport_test.cpp.
//   mpi_scenarios kill|stop|throw RANK FOLDER     the rank comes to grief; the others write FOLDER/rank-N
//   mpi_scenarios caller | funneled | mixed       exit code 0 where all is as it should be
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tessera/backends/mpi.h"
#include "tessera/error.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

Label label(Channel channel, int unit, int step) {
  Label out;
  out.channel = channel;
  out.unit = UnitId(unit);
  out.step = step;
  return out;
}

void come_to_grief(const std::string& how) {
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "stop") ::kill(::getpid(), SIGSTOP);
  throw std::runtime_error("the victim's own exception");
}

void train(World& world, const std::string& how, int victim, Clock::time_point& begun) {
  const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), std::chrono::seconds(3));
  c->name_units({"wte", "h.0"});
  Stream gather("gather"), reduce("reduce");
  constexpr std::int64_t n = 300'000;
  const auto w = static_cast<std::size_t>(world.size());
  for (int step = 0; step < 20; ++step) {
    begun = Clock::now();
    const auto shard = std::make_shared<std::vector<float>>(n), full = std::make_shared<std::vector<float>>(n * w);
    const auto sum = std::make_shared<std::vector<float>>(n), source = std::make_shared<std::vector<float>>(n * w);
    Pending a =
        c->all_gather({shard->data(), shard}, {full->data(), full}, Elements(n), DType::f32, label(Channel::gather, 1, step), gather);
    if (step == 10 && world.rank() == Rank(victim)) come_to_grief(how);
    Pending b = c->reduce_scatter({source->data(), source}, {sum->data(), sum}, Elements(n), DType::f32, Fold::start,
                                  label(Channel::reduce, 1, step), reduce);
    a.wait_host();
    b.wait_host();
  }
}

int grief(int argc, char** argv) {
  const std::string how = argv[1], folder = argv[3];
  const int victim = std::stoi(argv[2]);
  Clock::time_point begun;
  std::string report = "nothing";
  int rank = 0;
  {
    World world = mpi_world(argc, argv);
    rank = world.rank().value;
    std::ofstream(folder + "/pid-" + std::to_string(rank)) << ::getpid() << '\n';
    try {
      train(world, how, victim, begun);
    } catch (const CommFailure& e) {
      report = "CommFailure culprits";
      for (const Rank r : e.culprits) report += " " + std::to_string(r.value);
      report +=
          " verb " + e.verb + " unit " + e.unit + " dump " + (e.dump.find("of unit 'h.0' step 10") != std::string::npos ? "yes" : "no");
      report += " seconds " + std::to_string(std::chrono::duration<double>(Clock::now() - begun).count()) + "\n" + e.what();
    } catch (const std::exception& e) {
      report = std::string("exception ") + e.what();
      world.communicator().abort(e.what());
    }
  }
  // The end of the world is part of the time that counts.
  report += "\nended " + std::to_string(std::chrono::duration<double>(Clock::now() - begun).count()) + "\n";
  std::ofstream(folder + "/rank-" + std::to_string(rank)) << report;
  return report.starts_with("nothing") ? 0 : 1;
}

void check(bool claim, const char* text) {
  if (claim) return;
  std::fprintf(stderr, "not so: %s\n", text);
  throw std::runtime_error(text);
}

/// Collectives of a world, checked.
void work(World& world, int rounds) {
  Stream stream("work");
  for (int i = 0; i < rounds; ++i) {
    std::vector<double> data(5'000, world.rank().value + 1.0);
    world.communicator()
        .all_reduce({data.data()}, Elements(5'000), DType::f64, ReduceOp::sum, label(Channel::reduce, 0, i), stream)
        .wait_host();
    check(data[4'999] == world.size() * (world.size() + 1) / 2.0, "the sum is right");
  }
}

/// The caller's own messages, on tags that Tessera uses as well: every one arrives where it was sent.
void ring(MPI_Comm communicator, const std::atomic<bool>& over) {
  int rank = 0, size = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  int round = 0;
  for (int stop = 0; stop == 0; ++round) {
    const int tag = round % 14;
    int mine = rank * 1'000'000 + round, got = -1;
    MPI_Sendrecv(&mine, 1, MPI_INT, (rank + 1) % size, tag, &got, 1, MPI_INT, (rank + size - 1) % size, tag, communicator,
                 MPI_STATUS_IGNORE);
    check(got == (rank + size - 1) % size * 1'000'000 + round, "the caller's message is its own");
    int done = over ? 1 : 0;
    MPI_Allreduce(&done, &stop, 1, MPI_INT, MPI_MIN, communicator);
  }
}

int caller(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int round = 0; round < 3; ++round) {
    std::atomic<bool> over{false};
    std::thread beside([&] { ring(MPI_COMM_WORLD, over); });
    MPI_Comm half = MPI_COMM_NULL;
    {
      MPI_Comm own = MPI_COMM_NULL;
      MPI_Comm_dup(MPI_COMM_SELF, &own);
      World alone = mpi_world(own);
      check(alone.size() == 1, "a world of one");
      work(alone, 3);
      MPI_Comm_free(&own);
    }
    over = true;
    beside.join();
    over = false;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    World world = mpi_world(MPI_COMM_WORLD);
    World part = mpi_world(half);
    std::thread again([&] { ring(MPI_COMM_WORLD, over); });
    std::thread other([&] { work(part, 30); });
    work(world, 30);
    other.join();
    over = true;
    again.join();
    MPI_Comm_free(&half);
  }
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  check(initialised != 0 && finalised == 0, "MPI is still the caller's");
  MPI_Finalize();
  return 0;
}

int funneled(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  int code = 1;
  try {
    World world = mpi_world(MPI_COMM_WORLD);
  } catch (const UsageError& e) { code = std::string(e.what()).find("MPI_THREAD_MULTIPLE, &provided)") != std::string::npos ? 0 : 2; }
  MPI_Finalize();
  return level < MPI_THREAD_MULTIPLE ? code : 0;
}

int mixed(int argc, char** argv) {
  try {
    World world = mpi_world(argc, argv);
  } catch (const UsageError& e) { return std::string(e.what()).find("two MPI installations are mixed") != std::string::npos ? 0 : 2; }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  try {
    if (how == "caller") return caller(argc, argv);
    if (how == "funneled") return funneled(argc, argv);
    if (how == "mixed") return mixed(argc, argv);
    if (argc == 4) return grief(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 3;
}
