#include "train.h"

extern "C" [[gnu::visibility("default")]] int holder_trains() {
  int learned = 0;
  tessera::run_threads(1, [&](tessera::World& world) { learned = train(world) ? 1 : 0; });
  return learned;
}
