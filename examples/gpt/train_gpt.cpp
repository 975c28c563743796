// Trains a GPT with its training state sharded over ranks:
//
//   train_gpt --text book.txt --steps 200 --sample 300                      one rank
//   train_gpt --text book.txt --threads 4                                   four threads
//   mpirun -np 4 train_gpt --text book.txt --stage 3 --report run.json      four processes
//
// Reading order: model.cpp shows the engine in use, block.cpp the arithmetic, trainer.cpp the loop.
#include <unistd.h>

#include <Eigen/Core>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "examples/gpt/config.h"
#include "examples/gpt/launch.h"
#include "examples/gpt/setup.h"
#include "examples/gpt/trainer.h"

namespace {

// Attach a debugger to the process printed, set go = 1, continue.
void wait_for_debugger(const tessera::World& world, std::int64_t rank) {
  if (world.rank().value != rank) return;
  std::fprintf(stderr, "train_gpt: rank %d waits in process %d; in the debugger: set var go = 1\n", world.rank().value,
               static_cast<int>(getpid()));
  volatile int go = 0;
  while (go == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

int run(tessera::World& world, const std::string& why_this_transport, const gpt::CommandLine& line) {
  try {
    gpt::Setup setup = gpt::prepare(world, line);
    if (!why_this_transport.empty()) setup.decisions.insert(setup.decisions.begin(), why_this_transport);
    wait_for_debugger(world, setup.config.hang_rank);
    gpt::train(world, setup);
    return 0;
  } catch (const gpt::InputError& e) {  // on all ranks alike
    if (world.rank() == tessera::Rank(0)) std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_gpt: rank %d: %s\n", world.rank().value, e.what());
    world.communicator().abort(e.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const gpt::CommandLine line = gpt::read_command_line(argc, argv);
  if (!line.printout.empty()) {
    if (gpt::launched_rank() == 0) std::fputs(line.printout.c_str(), stdout);
    return 0;
  }
  // Block sizes of the products, and so their bits, from these and not from this processor's caches.
  Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
  return gpt::launch(line, argc, argv, [&](tessera::World& world, const std::string& why) { return run(world, why, line); });
}
