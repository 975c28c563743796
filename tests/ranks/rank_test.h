// Tests that run on every rank of a world, over whichever transport the command line names.
//
//   RANK_TEST("all_gather: every rank ends with every shard") (tessera::World& world) { ... CHECK(...); }
//   RANK_TEST_WITH("order: an extra call names both sides", {.deadline = std::chrono::seconds(3)}) (tessera::World& world) { ... }
//
// A RANK_TEST is a doctest test case whose body runs once per rank: on threads of this process (thread; a new world each time), or in this
// process as the one rank that it is (mpi: one world for all RANK_TESTs, a world of its own for RANK_TEST_WITH; node: always a new one). A
// body that breaks its communicator on purpose takes RANK_TEST_WITH. CHECK and REQUIRE may be used on every rank; SUBCASE may not: rank
// threads share it. A failure on any rank, also an exception that leaves a body, fails the test.
//
// A watchdog ends the process, after every rank's last operations, before CTest's TIMEOUT would.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <string_view>

#include "tessera/world.h"

namespace tessera::testing {

using RankBody = void (*)(World&);

void run_on_every_rank(std::string_view claim, RankBody body);
void run_on_every_rank(std::string_view claim, RankBody body, const TransportOptions& options);

int ranks();                                ///< of the worlds of this run
std::string_view transport();               ///< "thread", "node" or "mpi"
const TransportOptions& default_options();  ///< of RANK_TEST: a deadline fit for tests, and --chunk, --delay-us, --deadline-ms

/// Every rank has come here. Over the world's own communicator: before a test breaks another one, so that this does not reach a rank that
/// is still making it.
inline void meet(World& world) {
  Stream stream("meet");
  world.communicator().barrier({}, stream).wait_host();
}

/// Whether a gather at stage 3 moves anything: not on one rank, nor where ranks share memory.
inline bool gathers_copy(const World& world) { return !world.communicator().full_flat_addressable(); }

/// While it lives, the watchdog prints dump() too; for the communicator of an engine, which the world does not know.
class Watched {
 public:
  Watched(Rank rank, std::string what, std::function<std::string()> dump);
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
};

}  // namespace tessera::testing

#define TESSERA_RANK_TEST_IMPL(body, claim, ...)                                                                             \
  static void body(tessera::World&);                                                                                         \
  TEST_CASE(claim) { tessera::testing::run_on_every_rank(claim, body __VA_OPT__(, tessera::TransportOptions) __VA_ARGS__); } \
  static void body

#define RANK_TEST(claim) TESSERA_RANK_TEST_IMPL(DOCTEST_ANONYMOUS(rank_test_), claim)
#define RANK_TEST_WITH(claim, ...) TESSERA_RANK_TEST_IMPL(DOCTEST_ANONYMOUS(rank_test_), claim, __VA_ARGS__)
