// The MPI transport in whole programs under mpirun: dead, stopped and throwing ranks [B28], a caller's own MPI [B30], mixed
// installations [B29].
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "tests/process/program.h"

namespace {

using namespace tessera::testing;

std::string program() { return std::string(TESSERA_BINARY_DIR) + "/tests/mpi_scenarios"; }

std::string file_of(const TemporaryFolder& folder, const char* what, int rank) {
  return read_file(folder / (std::string(what) + "-" + std::to_string(rank)));
}

pid_t pid_of(const TemporaryFolder& folder, int rank) {
  const std::string text = file_of(folder, "pid", rank);
  return text.empty() ? 0 : static_cast<pid_t>(std::stoi(text));
}

/// mpirun would end all ranks with the first one that dies; --enable-recovery leaves the survivors to us.
Outcome run_grief(const TemporaryFolder& folder, const std::string& how, int ranks, int victim, const std::string& network) {
  std::vector<std::string> command = {"mpirun", "--oversubscribe", "--bind-to", "none", "--enable-recovery", "-np", std::to_string(ranks)};
  if (!network.empty()) command.insert(command.end(), {"--mca", "btl", network});
  // The wrapper writes each process's exit code, also where Open MPI ended it.
  const std::string wrapper = "\"$0\" \"$@\"; echo $? >'" + (folder / "code") + "'-$OMPI_COMM_WORLD_RANK";
  command.insert(command.end(), {"sh", "-c", wrapper, program(), how, std::to_string(victim), folder / "."});
  return run_program(command, 45);
}

void check_survivors(const TemporaryFolder& folder, int ranks, int victim) {
  for (int r = 0; r < ranks; ++r) {
    if (r == victim) continue;
    const std::string said = file_of(folder, "rank", r);
    INFO("rank ", r, " said: ", said);
    std::istringstream words(said);
    std::string kind, culprits, verb, unit, dump, word;
    double seconds = 99, ended = 99;
    words >> kind >> word >> culprits >> word >> verb >> word >> unit >> word >> dump >> word >> seconds;
    CHECK(kind == "CommFailure");
    CHECK(culprits == std::to_string(victim));
    CHECK((verb == "all_gather" || verb == "reduce_scatter"));
    CHECK(unit == "h.0");
    CHECK(dump == "yes");
    CHECK(seconds < 3.5);  // the deadline is 3 s
    while (words >> word && word != "ended") {}
    words >> ended;
    CHECK(ended < 8.0);
    for (int tenth = 0; tenth < 50 && ::kill(pid_of(folder, r), 0) == 0; ++tenth)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(::kill(pid_of(folder, r), 0) != 0);
  }
}

}  // namespace

TEST_CASE("kill -9 of one rank: every survivor throws within the deadline, naming rank, verb and unit, and ends [B28]") {
  for (const int victim : {0, 2}) {
    const TemporaryFolder folder;
    run_grief(folder, "kill", 3, victim, "");
    check_survivors(folder, 3, victim);
  }
}

TEST_CASE(
    "kill -9 of one rank on a network of sockets: whom Open MPI leaves alive names the dead rank within the deadline, and all end [B28]") {
  // Open MPI 4.1 ends a process itself when a socket to a dead peer breaks with messages on it; such a rank cannot speak, and counts as
  // dead to the other.
  const TemporaryFolder folder;
  run_grief(folder, "kill", 3, 1, "tcp,self");
  for (const int r : {0, 2}) {
    const std::string said = file_of(folder, "rank", r);
    INFO("rank ", r, " said: ", said);
    const std::string culprits = said.substr(0, said.find(" verb "));
    const bool named =
        culprits == "CommFailure culprits 1" || culprits == "CommFailure culprits 1 2" || culprits == "CommFailure culprits 0 1";
    CHECK((said.empty() || named));
    CHECK_FALSE(file_of(folder, "code", r).empty());  // it has ended by itself or by Open MPI, not by this test's patience
    for (int tenth = 0; tenth < 50 && ::kill(pid_of(folder, r), 0) == 0; ++tenth)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(::kill(pid_of(folder, r), 0) != 0);
  }
}

TEST_CASE("SIGSTOP of one rank: every survivor throws within the deadline, naming rank, verb and unit, and ends [B28]") {
  const TemporaryFolder folder;
  std::thread watcher([&] {
    for (int tenth = 0; tenth < 300; ++tenth) {
      if (!file_of(folder, "rank", 0).empty() && !file_of(folder, "rank", 2).empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (pid_of(folder, 1) > 0) ::kill(pid_of(folder, 1), SIGKILL);
  });
  run_grief(folder, "stop", 3, 1, "");
  watcher.join();
  check_survivors(folder, 3, 1);
}

TEST_CASE("an exception on one rank: every survivor throws at once, naming it, and all processes end [B28]") {
  const TemporaryFolder folder;
  run_grief(folder, "throw", 4, 3, "");
  check_survivors(folder, 4, 3);
  CHECK(file_of(folder, "rank", 3).starts_with("exception the victim's own exception"));
}

TEST_CASE("beside a caller's own MPI: same tags, another thread, several worlds, and MPI stays the caller's [B30]") {
  const Outcome ran = run_under_mpi(3, {program(), "caller"}, 60);
  INFO(ran.out, ran.err);
  CHECK(ran.code == 0);
}

TEST_CASE("a caller's MPI below MPI_THREAD_MULTIPLE is refused with the call that fixes it [B30]") {
  const Outcome ran = run_under_mpi(2, {program(), "funneled"}, 30);
  INFO(ran.out, ran.err);
  CHECK(ran.code == 0);
}

TEST_CASE("a launcher of another MPI that started more processes is an error, not runs side by side [B29]") {
  // As MPICH's launcher would: one process that MPI takes for a world of its own.
  const Outcome ran = run_program({"env", "SLURM_STEP_ID=0", "SLURM_NTASKS=4", program(), "mixed"}, 30);
  INFO(ran.out, ran.err);
  CHECK(ran.code == 0);
}
