// The two pages that a newcomer reads first.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/process/program.h"

namespace {

using namespace tessera::testing;

const std::string kExamples = std::string(TESSERA_BINARY_DIR) + "/examples/";

// "step 399  loss 0.00266" gives 0.00266.
std::vector<double> losses(const std::string& out) {
  std::vector<double> found;
  for (const std::string& line : lines_of(out)) {
    const std::size_t at = line.find("loss ");
    if (at != std::string::npos) found.push_back(std::stod(line.substr(at + 5)));
  }
  return found;
}

void check_learns(const Outcome& outcome) {
  INFO(outcome.err << outcome.out);
  CHECK(outcome.code == 0);
  const std::vector<double> loss = losses(outcome.out);
  REQUIRE(loss.size() == 5);
  CHECK(loss.back() < 0.1 * loss.front());
}

TEST_CASE("examples: 02_mpi.cpp is 01_threads.cpp with three lines changed") {
  const std::string folder = std::string(TESSERA_SOURCE_DIR) + "/examples/";
  const std::vector<std::string> threads = lines_of(read_file(folder + "01_threads.cpp"));
  const std::vector<std::string> mpi = lines_of(read_file(folder + "02_mpi.cpp"));
  REQUIRE(threads.size() == mpi.size());
  REQUIRE(threads.size() > 50);
  int changed = 0;
  for (std::size_t i = 0; i < threads.size(); ++i) changed += threads[i] != mpi[i] ? 1 : 0;
  CHECK(changed == 3);
}

TEST_CASE("examples: 01_threads learns") { check_learns(run_program({kExamples + "01_threads"})); }

#ifdef TESSERA_WITH_MPI
TEST_CASE("examples: 02_mpi learns on any number of processes") {
  for (const int ranks : {1, 2, 4}) check_learns(run_under_mpi(ranks, {kExamples + "02_mpi"}));
}
#endif

}  // namespace
