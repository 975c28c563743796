// Processes that share memory, forked by this test: no launcher is there to help or to clean up. One of them is killed or stopped while the
// others wait for it; or all are killed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/node/communicator.h"
#include "tessera/engine.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr std::chrono::seconds kDeadline{3};

/// A rank as the test sees it: its process, and what it writes to the test line by line.
struct Child {
  pid_t pid = -1;
  int from = -1;

  /// The next line; empty where the process is gone.
  std::string line() const {
    std::string out;
    for (char c = 0; read(from, &c, 1) == 1 && c != '\n';) out.push_back(c);
    return out;
  }
};

/// What a rank does; `say` writes a line to the test.
using Body = std::function<void(World& world, const std::function<void(const std::string&)>& say)>;

class Family {
 public:
  explicit Family(const Body& body) {
    const comm::node::SegmentLayout layout = comm::node::layout_for(kRanks, Bytes(1 << 20));
    comm::node::Segment segment = comm::node::Segment::create(layout.total);
    for (int rank = 0; rank < kRanks; ++rank) {
      int ends[2];
      REQUIRE(pipe(ends) == 0);
      const pid_t pid = fork();
      if (pid == 0) {
        close(ends[0]);
        const int to = ends[1];
        const auto say = [to](const std::string& what) {
          const std::string line = what + "\n";
          if (write(to, line.data(), line.size()) < 0) std::_Exit(3);
        };
        try {
          TransportOptions options;
          options.deadline = kDeadline;
          World world(std::make_shared<comm::node::NodeCommunicator>(comm::node::Segment::inherit(segment.fd(), layout.total), layout,
                                                                     Rank(rank), options, nullptr));
          body(world, say);
        } catch (const std::exception& e) { say(std::string("left with: ") + e.what()); }
        std::_Exit(0);
      }
      close(ends[1]);
      children.push_back({pid, ends[0]});
    }
  }
  ~Family() {
    for (const Child& c : children) {
      kill(c.pid, SIGKILL);
      waitpid(c.pid, nullptr, 0);
      close(c.from);
    }
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  std::vector<Child> children;
};

/// Trains; says "here" in every micro-batch before its gradient, and what ended the training.
void train(World& world, const std::function<void(const std::string&)>& say, const std::function<void()>& before_gradient) {
  ModelSpec spec;
  const UnitId unit = spec.unit("h.0").tensor("w", {64, 1024});
  Engine engine(world, spec, {.stage = Stage::parameters, .deadline = kDeadline});
  engine.initialize([](const TensorPiece& piece) {
    for (float& v : piece.values()) v = 1.0f;
  });
  Clock::time_point begun = Clock::now();
  try {
    for (;;) {
      begun = Clock::now();
      {
        const MicroBatch leaf = engine.micro_batch();
        const ParameterLease w = engine.gather(unit);
        say("here");
        before_gradient();
        const GradientLease g = engine.gradients(unit);
        g["w"][0] += 1.0f;
      }
      engine.step({});
    }
  } catch (const CommFailure& e) {
    std::string culprits;
    for (const Rank r : e.culprits) culprits += std::to_string(r.value) + " ";
    say("failed: " + culprits + "| " + e.verb + " | " + e.unit + " | " + e.what());
    say(std::to_string(std::chrono::duration<double>(Clock::now() - begun).count()));
  }
}

void rank_1_waits_forever(World& world, const std::function<void(const std::string&)>& say) {
  train(world, say, [&] {
    while (world.rank() == Rank(1)) pause();
  });
}

/// Processes that have memory of ours mapped, and files in /dev/shm.
std::set<std::string> traces() {
  std::set<std::string> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) out.insert(entry.path().string());
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("memfd:tessera") != std::string::npos) out.insert(process.path().string());
  }
  return out;
}

}  // namespace

TEST_CASE("node: a rank killed while the others wait on its counter: all throw within the deadline, naming rank, verb and unit") {
  const std::set<std::string> before = traces();
  {
    const Family family(rank_1_waits_forever);
    for (const Child& c : family.children) CHECK(c.line() == "here");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others come to the reduction and fall asleep
    kill(family.children[1].pid, SIGKILL);
    for (const int survivor : {0, 2}) {
      const std::string said = family.children[static_cast<std::size_t>(survivor)].line();
      CHECK(said.find("failed: 1 | reduce_scatter | h.0 | rank 1 died") == 0);
      CHECK(std::stod(family.children[static_cast<std::size_t>(survivor)].line()) < 3.0);
    }
  }
  CHECK(traces() == before);
}

TEST_CASE("node: a rank that is stopped while the others wait on its counter is named when the deadline is over") {
  const Family family(rank_1_waits_forever);
  for (const Child& c : family.children) CHECK(c.line() == "here");
  kill(family.children[1].pid, SIGSTOP);
  for (const int survivor : {0, 2}) {
    const std::string said = family.children[static_cast<std::size_t>(survivor)].line();
    CHECK_MESSAGE(said.find("failed: 1 | reduce_scatter | h.0 | rank 1 did not come to reduce_scatter #0 of unit 'h.0'") == 0, said);
    CHECK(std::stod(family.children[static_cast<std::size_t>(survivor)].line()) < 4.0);
  }
}

TEST_CASE("node: a rank killed at any moment of training ends the others, naming it") {
  for (int i = 0; i < 12; ++i) {
    const Family family([](World& world, const auto& say) { train(world, say, [] {}); });
    CHECK(family.children[2].line() == "here");
    std::this_thread::sleep_for(std::chrono::microseconds(i * i * 200));
    kill(family.children[2].pid, SIGKILL);
    for (const int survivor : {0, 1}) {
      std::string said = "here";
      while (said == "here") said = family.children[static_cast<std::size_t>(survivor)].line();
      CHECK_MESSAGE(said.find("failed: 2 ") == 0, said);
    }
  }
}

TEST_CASE("node: after kill -9 of all ranks nothing of ours is left on the host") {
  const std::set<std::string> before = traces();
  {
    const Family family([](World& world, const auto& say) { train(world, say, [] {}); });
    for (const Child& c : family.children) CHECK(c.line() == "here");
    CHECK(traces() != before);
    for (const Child& c : family.children) kill(c.pid, SIGKILL);
  }
  CHECK(traces() == before);
}
