// Killed, stopped, thrown out: in the middle of a step, under mpirun, as users meet it.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include "tests/process/program.h"

namespace {

using namespace tessera::testing;

// Kills what a test leaves stopped, and says whether processes of the run are still there 5 s later.
class Cleanup {
 public:
  Cleanup(const TemporaryFolder& folder, int ranks) : folder_(folder), ranks_(ranks) {}
  void end_stopped(int rank) const {
    const pid_t pid = pid_of(rank);
    if (pid > 0) ::kill(pid, SIGKILL);
  }
  bool all_gone() const {
    for (int tenth = 0; tenth < 50; ++tenth) {
      bool any = false;
      for (int r = 0; r < ranks_; ++r) any = any || (pid_of(r) > 0 && ::kill(pid_of(r), 0) == 0);
      if (!any) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }

 private:
  pid_t pid_of(int rank) const {
    const std::string text = read_file(folder_ / ("pid-" + std::to_string(rank)));
    return text.empty() ? 0 : static_cast<pid_t>(std::stoi(text));
  }
  const TemporaryFolder& folder_;
  int ranks_;
};

std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& options) {
  std::vector<std::string> command = {"mpirun", "--oversubscribe", "--bind-to", "none", "-np", std::to_string(ranks)};
  command.insert(command.end(), options.begin(), options.end());
  return command;
}

std::string victim_program() { return std::string(TESSERA_BINARY_DIR) + "/tests/process_victim"; }

// Each rank's own exit code, written by a shell around it: mpirun --enable-recovery itself returns 0.
Outcome run_recovering(const TemporaryFolder& folder, int ranks, const std::string& how, int victim, const std::string& transport = "mpi") {
  std::vector<std::string> command =
      mpirun(ranks, {"--enable-recovery", "sh", "-c", "\"$@\"; echo $? > \"$0/code-$OMPI_COMM_WORLD_RANK\"", folder / "."});
  command.insert(command.end(), {victim_program(), how, std::to_string(victim), folder / ".", transport});
  return run_program(command, 40);
}

void check_survivors(const TemporaryFolder& folder, int ranks, int victim, bool codes) {
  for (int r = 0; r < ranks; ++r) {
    if (r == victim) continue;
    const std::string said = read_file(folder / ("rank-" + std::to_string(r)));
    INFO("rank " << r << " said: " << said);
    std::istringstream words(said);
    std::string kind, culprits, verb, unit, word;
    words >> kind >> word >> culprits >> word >> verb >> word >> unit;
    CHECK((kind == "CommFailure" || kind == "StepInterrupted"));
    CHECK(culprits == std::to_string(victim));
    CHECK((verb == "all_gather" || verb == "reduce_scatter"));
    CHECK(unit.rfind("h.", 0) == 0);
    double seconds = 99;
    words >> word >> seconds;
    CHECK(word == "seconds");
    CHECK(seconds < 3.5);  // the deadline is 3 s from submission, and the step began before
    if (codes) CHECK(read_file(folder / ("code-" + std::to_string(r))) == "1\n");
  }
}

}  // namespace

TEST_CASE("B28: kill -9 in the middle of a step: every survivor names the dead rank, verb and unit within the deadline, and ends with 1") {
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks << " ranks");
    const TemporaryFolder folder;
    const Cleanup cleanup(folder, ranks);
    run_recovering(folder, ranks, "kill", ranks - 1);
    check_survivors(folder, ranks, ranks - 1, true);
    CHECK(cleanup.all_gone());
  }
}

TEST_CASE("B28: the same over shared memory, and over pretended hosts of two ranks each, whichever rank it is") {
  for (const std::string transport : {"node", "hierarchical"}) {
    for (const int victim : {0, 1, 3}) {
      INFO("rank " << victim << " of 4 over " << transport);
      const TemporaryFolder folder;
      const Cleanup cleanup(folder, 4);
      run_recovering(folder, 4, "kill", victim, transport);
      check_survivors(folder, 4, victim, true);
      CHECK(cleanup.all_gone());
    }
  }
}

TEST_CASE(
    "B28: SIGSTOP in the middle of a step: every survivor names the stopped rank, verb and unit within the deadline, and ends with 1") {
  const TemporaryFolder folder;
  const Cleanup cleanup(folder, 3);
  std::thread killer([&] {
    // When both survivors have spoken, or patience is over.
    for (int tenth = 0; tenth < 200; ++tenth) {
      if (!read_file(folder / "code-0").empty() && !read_file(folder / "code-2").empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    cleanup.end_stopped(1);
  });
  run_recovering(folder, 3, "stop", 1);
  killer.join();
  check_survivors(folder, 3, 1, true);
  CHECK(cleanup.all_gone());
}

TEST_CASE("B28: an exception on one rank that gives up: every survivor names it within the deadline, and ends with 1") {
  const TemporaryFolder folder;
  const Cleanup cleanup(folder, 3);
  run_recovering(folder, 3, "throw", 0);
  check_survivors(folder, 3, 0, true);
  CHECK(read_file(folder / "rank-0").rfind("exception the victim's own exception", 0) == 0);
  CHECK(cleanup.all_gone());
}

TEST_CASE("B28: under plain mpirun all three end with a code that is not 0, and nothing is left 5 s later") {
  for (const std::string how : {"kill", "stop", "throw"}) {
    CAPTURE(how);
    const TemporaryFolder folder;
    const Cleanup cleanup(folder, 3);
    std::vector<std::string> command = mpirun(3, {victim_program(), how, "1", folder / ".", "mpi"});
    std::thread killer([&] {
      if (how != "stop") return;
      for (int tenth = 0; tenth < 200; ++tenth) {
        if (!read_file(folder / "rank-0").empty() || !read_file(folder / "rank-2").empty()) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      std::this_thread::sleep_for(std::chrono::seconds(1));
      cleanup.end_stopped(1);
    });
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = run_program(command, 40);
    killer.join();
    CHECK(outcome.code != 0);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));  // it ended by itself
    CHECK(cleanup.all_gone());
  }
}
