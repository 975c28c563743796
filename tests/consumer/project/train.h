#pragma once
#include <tessera/world.h>

/// Trains y = w·x + b on this rank's samples, parameters sharded; returns whether it learned, the same on every rank.
bool train(tessera::World& world);
