// A rank that comes to grief in the middle of a step, and what the others say. Run under mpirun by step_failure_test.cpp.
//   victim HOW RANK DIR TRANSPORT    HOW: kill, stop or throw; TRANSPORT: mpi, node or hierarchical (two ranks on each pretended host)
// Each survivor writes DIR/rank-N: what it caught, the culprits, verb, unit and the seconds it took.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tessera/backends/mpi.h"
#include "tessera/engine.h"

namespace {

using Clock = std::chrono::steady_clock;

void come_to_grief(const std::string& how) {
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "stop") ::kill(::getpid(), SIGSTOP);
  throw std::runtime_error("the victim's own exception");
}

void train(tessera::World& world, const std::string& how, int victim, Clock::time_point& last_step) {
  tessera::ModelSpec spec;
  std::vector<tessera::UnitId> units;
  for (int i = 0; i < 4; ++i) units.push_back(spec.unit("h." + std::to_string(i)).tensor("w", {100'000}));
  spec.order(units);
  tessera::Engine engine(world, spec, {.deadline = std::chrono::seconds(3)});
  for (int step = 0; step < 10; ++step) {
    last_step = Clock::now();
    {
      auto leaf = engine.micro_batch();
      for (const auto u : units) auto w = engine.gather(u);
      for (std::size_t i = units.size(); i-- > 0;) {
        auto w = engine.gather(units[i], tessera::Phase::backward);
        auto g = engine.gradients(units[i]);
        for (float& v : g["w"]) v += 1.0f;
        if (step == 3 && i == 2 && world.rank() == tessera::Rank(victim)) come_to_grief(how);
      }
    }
    engine.step({});
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 3;
  const std::string how = argv[1], folder = argv[3];
  const int victim = std::stoi(argv[2]);
  const std::string transport = argv[4];
  tessera::World met = tessera::mpi_world(argc, argv);
  tessera::World world = transport == "mpi"    ? met
                         : transport == "node" ? tessera::node_world(met)
                                               : tessera::hierarchical_world(met, {.ranks_per_node = 2});
  std::ofstream(folder + "/pid-" + std::to_string(world.rank().value)) << ::getpid() << '\n';
  Clock::time_point begin;
  std::string report;
  try {
    train(world, how, victim, begin);
    report = "nothing";
  } catch (const tessera::CommFailure& e) {
    report = "CommFailure culprits";
    for (const tessera::Rank r : e.culprits) report += " " + std::to_string(r.value);
    report += " verb " + e.verb + " unit " + e.unit;
  } catch (const tessera::StepInterrupted& e) {
    report = "StepInterrupted culprits " + std::to_string(e.rank.value) + " verb " + e.verb + " unit " + e.unit;
  } catch (const std::exception& e) { report = std::string("exception ") + e.what(); }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::ofstream(folder + "/rank-" + std::to_string(world.rank().value)) << report << "\nseconds " << seconds << '\n';
  return report == "nothing" ? 0 : 1;
}
