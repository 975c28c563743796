// main() of tests on ranks:
//   --transport thread|node|mpi|hierarchical --ranks N --watchdog S [--chunk BYTES] [--delay-us N] [--deadline-ms N] [doctest's own flags]
#define DOCTEST_CONFIG_IMPLEMENT
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/ranks/rank_launcher.h"
#include "tests/ranks/rank_test.h"

namespace tessera::testing {
namespace {

constexpr int kWatchdogExit = 86;

struct Entry {
  Rank rank;
  std::string what;
  std::function<std::string()> dump;
  const void* key;
};

/// What runs now, for the watchdog.
struct State {
  std::unique_ptr<RankLauncher> launcher;
  std::string transport = "thread";
  TransportOptions options;
  std::mutex mutex;
  std::condition_variable ended_changed;
  bool ended = false;
  std::string claim;
  std::list<Entry> watched;
};

State& state() {
  static State instance;
  return instance;
}

void bark(int seconds) {
  State& s = state();
  std::fprintf(stderr, "\nwatchdog: process of rank %d (%s, %d ranks) still runs after %d s, in \"%s\"; last operations:\n",
               s.launcher->rank_of_process(), s.transport.c_str(), s.launcher->ranks(), seconds, s.claim.c_str());
  for (const Entry& entry : s.watched)
    std::fprintf(stderr, "--- rank %d, %s\n%s\n", entry.rank.value, entry.what.c_str(), entry.dump().c_str());
  std::fflush(stderr);
}

void watch(int seconds) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (s.ended_changed.wait_for(lock, std::chrono::seconds(seconds), [&s] { return s.ended; })) return;
  bark(seconds);
  // mpirun ends the peers as soon as this process is gone: let them print first.
  if (s.transport != "thread") s.ended_changed.wait_for(lock, std::chrono::seconds(3), [] { return false; });
  std::_Exit(kWatchdogExit);
}

void run(std::string_view claim, RankBody body, const std::optional<TransportOptions>& options) {
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.claim = claim;
  }
  s.launcher->run(
      [body](World& world) {
        INFO("on rank ", world.rank().value, " of ", world.size(), " over ", std::string(world.transport()));
        const Watched watched(world.rank(), "world", [&world] { return world.communicator().dump(); });
        body(world);
      },
      options);
}

int usage(const char* problem) {
  std::fprintf(stderr,
               "rank test: %s; usage: --transport thread|node|mpi|hierarchical --ranks N [--watchdog S] [--chunk BYTES] [--delay-us N] "
               "[--deadline-ms N]\n",
               problem);
  return 2;
}

}  // namespace

Watched::Watched(Rank rank, std::string what, std::function<std::string()> dump) {
  const std::lock_guard lock(state().mutex);
  state().watched.push_back({rank, std::move(what), std::move(dump), this});
}

Watched::~Watched() {
  const std::lock_guard lock(state().mutex);
  state().watched.remove_if([this](const Entry& entry) { return entry.key == this; });
}

void run_on_every_rank(std::string_view claim, RankBody body) { run(claim, body, std::nullopt); }
void run_on_every_rank(std::string_view claim, RankBody body, const TransportOptions& options) { run(claim, body, options); }

int ranks() { return state().launcher->ranks(); }
std::string_view transport() { return state().transport; }
const TransportOptions& default_options() { return state().options; }

}  // namespace tessera::testing

int main(int argc, char** argv) {
  using tessera::testing::state;
  int ranks = 1;
  int watchdog = 80;
  tessera::TransportOptions& options = state().options;
  options.deadline = std::chrono::seconds(30);
  options.reduce_order = tessera::ReduceOrder::leaf;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = argv[i + 1];
    if (flag == "--transport") state().transport = value;
    else if (flag == "--ranks") ranks = std::atoi(value);
    else if (flag == "--watchdog") watchdog = std::atoi(value);
    else if (flag == "--chunk") options.chunk = tessera::Bytes(std::atoll(value));
    else if (flag == "--delay-us") options.random_delay = std::chrono::microseconds(std::atoll(value));
    else if (flag == "--deadline-ms") options.deadline = std::chrono::milliseconds(std::atoll(value));
    else if (flag == "--ranks-per-node") options.ranks_per_node = std::atoi(value);
    else if (flag == "--order")
      options.reduce_order = std::string(value) == "leaf" ? tessera::ReduceOrder::leaf : tessera::ReduceOrder::natural;
    else continue;
    ++i;
  }

  if (state().transport == "thread") {
    state().launcher = tessera::testing::launch_threads(ranks, options);
#ifdef TESSERA_WITH_MPI
  } else if (state().transport == "mpi") {
    state().launcher = tessera::testing::launch_mpi(argc, argv, options);
  } else if (state().transport == "node") {
    state().launcher = tessera::testing::launch_node(argc, argv, options);
  } else if (state().transport == "hierarchical") {
    if (options.ranks_per_node == 0) options.ranks_per_node = ranks % 2 == 0 && ranks > 2 ? 2 : 1;
    state().launcher = tessera::testing::launch_hierarchical(argc, argv, options);
#endif
  } else {
    return tessera::testing::usage("this build has no such transport");
  }
  if (state().launcher->ranks() != ranks) return tessera::testing::usage("--ranks is not what mpirun started");

  doctest::Context context(argc, argv);
  if (state().transport != "thread") context.setOption("no-colors", true);  // mpirun gives its processes a terminal
  if (state().launcher->rank_of_process() != 0) context.setOption("minimal", true);
  std::thread dog(tessera::testing::watch, watchdog);
  const int result = context.run();
  {
    const std::lock_guard lock(state().mutex);
    state().ended = true;
  }
  state().ended_changed.notify_all();
  dog.join();
  state().launcher.reset();
  return result;
}
