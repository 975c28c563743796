#include <tessera/backends/mpi.h>

#include "train.h"

int main(int argc, char** argv) {
  tessera::World world = tessera::mpi_world(argc, argv);
  return world.size() == 2 && train(world) ? 0 : 1;
}
