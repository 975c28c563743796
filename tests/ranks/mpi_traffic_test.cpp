// What the mpi transport says it sent against an independent count: this program's own MPI_Isend and MPI_Issend stand before Open MPI's.
#include <atomic>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "tests/ranks/rank_test.h"
#include "tests/ranks/toy.h"

namespace {
std::atomic<std::int64_t> messages{0}, bytes_sent{0}, large_messages{0};

void count(int n, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  const std::int64_t bytes = std::int64_t{n} * size;
  ++messages;
  bytes_sent += bytes;
  if (bytes > 64) ++large_messages;
}
}  // namespace

extern "C" {
int MPI_Isend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm communicator, MPI_Request* request) {
  count(n, type);
  return PMPI_Isend(data, n, type, to, tag, communicator, request);
}
int MPI_Issend(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm communicator, MPI_Request* request) {
  count(n, type);
  return PMPI_Issend(data, n, type, to, tag, communicator, request);
}
// The transport may not send by other means, or the count above would miss it.
int MPI_Send(const void*, int, MPI_Datatype, int, int, MPI_Comm) { return MPI_ERR_OTHER; }
int MPI_Rsend(const void*, int, MPI_Datatype, int, int, MPI_Comm) { return MPI_ERR_OTHER; }
int MPI_Bcast(void*, int, MPI_Datatype, int, MPI_Comm) { return MPI_ERR_OTHER; }
int MPI_Alltoall(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm) { return MPI_ERR_OTHER; }
int MPI_Allreduce(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) { return MPI_ERR_OTHER; }
}

using namespace tessera;
using namespace tessera::testing;

RANK_TEST("over mpi, an independent count of what crosses MPI agrees with the engine's traffic, and both keep to the bound")(World& world) {
  constexpr std::int64_t unit = 840 * 1024, units = 3, psi = unit * units;  // divides by 1024 * W
  Toy toy;
  for (int i = 0; i < units; ++i) toy.forward.push_back(toy.spec.unit("h." + std::to_string(i)).tensor("w", {840, 1024}));
  toy.spec.order(toy.forward);
  const std::int64_t w = world.size();
  for (const Stage stage : {Stage::none, Stage::moments, Stage::gradients, Stage::parameters}) {
    CAPTURE(static_cast<int>(stage));
    Engine engine(world, toy.spec, {.stage = stage});
    const auto step = [&] {
      {
        const MicroBatch leaf = engine.micro_batch();
        run_toy_leaf(engine, toy.forward, 1);
      }
      engine.step({.clip_norm = 1.0});
    };
    step();
    engine.sum(0.0);  // all of the first step's messages are on their way
    const Traffic t0 = engine.report().traffic;
    const std::int64_t m0 = bytes_sent;
    for (int s = 0; s < 2; ++s) step();
    engine.sum(0.0);
    const Traffic t1 = engine.report().traffic;
    const std::int64_t counted = bytes_sent - m0;
    const std::int64_t payload = (t1.payload_sent - t0.payload_sent).value, control = (t1.control_sent - t0.control_sent).value;
    const std::int64_t bound = 4 * (stage == Stage::parameters ? 3 : 2) * psi * (w - 1) / w;
    CHECK(payload <= 2 * bound);
    // The headers of operations that are about to end may be counted on one side of a reading and sent on the other.
    CHECK(std::abs(counted - (payload + control)) <= 4096);
    const std::int64_t chunks = 2 * (bound / default_options().chunk.value + 3 * units * w);
    CHECK(counted <= 2 * bound + 2 * 4096 + 64 * chunks);
    if (w > 1) CHECK(counted >= bound);
  }
}
