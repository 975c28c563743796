#include "comm/mpi/bootstrap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "comm/host.h"
#include "comm/mpi/error.h"
#include "tessera/error.h"

namespace tessera::comm::mpi {

namespace {

const char* name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    default: return "MPI_THREAD_MULTIPLE";
  }
}

int size_of_world() {
  int size = 0;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

void check_launcher() {
  if (const auto problem = launcher_disagrees(size_of_world(), [](const char* name) { return std::getenv(name); }))
    throw UsageError(*problem);
}

/// What all ranks must have in common, and where each one is.
struct Introduction {
  std::int64_t chunk, deadline, random_delay;
  std::array<char, 256> host;
};

std::vector<std::string> introduce(MPI_Comm communicator, const TransportOptions& options) {
  Introduction own{};
  own.chunk = options.chunk.value;
  own.deadline = options.deadline.count();
  own.random_delay = options.random_delay.count();
  const std::string host = host_name();
  std::memcpy(own.host.data(), host.data(), std::min(host.size(), own.host.size() - 1));
  int size = 0;
  check(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  std::vector<Introduction> all(static_cast<std::size_t>(size));
  constexpr int kBytes = sizeof(Introduction);
  check(MPI_Allgather(&own, kBytes, MPI_BYTE, all.data(), kBytes, MPI_BYTE, communicator), "MPI_Allgather");
  std::vector<std::string> hosts;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Introduction& other = all[r];
    if (other.chunk != all[0].chunk || other.deadline != all[0].deadline || other.random_delay != all[0].random_delay)
      throw UsageError(
          fmt::format("rank {} has TransportOptions chunk {} bytes, deadline {} ms, random_delay {} us, and rank 0 has {}, {}, {}; "
                      "they must be the same on all ranks",
                      r, other.chunk, other.deadline, other.random_delay, all[0].chunk, all[0].deadline, all[0].random_delay));
    hosts.emplace_back(other.host.data());
  }
  return hosts;
}

Joined duplicate(MPI_Comm communicator, const TransportOptions& options) {
  Joined out;
  check(MPI_Comm_dup(communicator, &out.communicator), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(out.communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int rank = 0;
  check(MPI_Comm_rank(out.communicator, &rank), "MPI_Comm_rank");
  out.rank = Rank(rank);
  out.hosts = introduce(out.communicator, options);
  return out;
}

std::optional<int> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size()) return std::nullopt;
  return value;
}

// Over TCP, Open MPI asks before it sends a large message, and the answer waits behind what the peer is sending: each direction then idles
// while the other is busy, and a link carries half of what it could both ways. Our receives are always posted first, so that nothing
// is gained by asking. Further connections let short messages pass long ones. Whoever has set these already is not overruled.
void tune_tcp() {
  for (const char* name : {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"})
    ::setenv(name, "2097152", 0);
  ::setenv("OMPI_MCA_btl_tcp_links", "3", 0);
}

// Opens every connection from the lower rank's side, one after another. Open MPI opens them when they are first used; two processes that
// open several of one pair at once from both sides may lose one, and what was to travel on it stays until something else does.
void connect_in_turn() {
  constexpr int kMessages = 8;  // Open MPI takes the connections of a pair in turn
  int rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  const int size = size_of_world();
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    char nothing = 0;
    for (int i = 0; i < kMessages; ++i) {
      if (rank < peer) check(MPI_Ssend(&nothing, 1, MPI_CHAR, peer, 0, MPI_COMM_WORLD), "MPI_Ssend");
      else check(MPI_Recv(&nothing, 1, MPI_CHAR, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    }
  }
}

}  // namespace

std::optional<std::string> launcher_disagrees(int size, const std::function<const char*(const char*)>& environment) {
  const char* source = "OMPI_COMM_WORLD_SIZE";
  std::optional<int> started = number(environment(source));
  if (!started) started = number(environment(source = "PMI_SIZE"));
  if (!started && environment("SLURM_STEP_ID") != nullptr) started = number(environment(source = "SLURM_NTASKS"));
  if (!started || *started <= size) return std::nullopt;
  return fmt::format(
      "the launcher started {} processes ({}), but MPI_COMM_WORLD has {}: two MPI installations are mixed, and {} separate "
      "runs would train side by side; start the program with the mpirun of the MPI it was built with",
      *started, source, size, *started / size);
}

Joined join(MPI_Comm communicator, const TransportOptions& options) {
  int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  check(MPI_Finalized(&finalised), "MPI_Finalized");
  if (initialised == 0 || finalised != 0)
    throw UsageError(
        "mpi_world was given a communicator, but MPI is not initialised or already finalised; it must last from before the "
        "first world to after the last");
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level < MPI_THREAD_MULTIPLE)
    throw UsageError(
        fmt::format("MPI was initialised with {} (Tessera's communication thread calls MPI beside yours); initialise it with "
                    "MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided)",
                    name_of_level(level)));
  check_launcher();
  return duplicate(communicator, options);
}

Joined join_world(int& argc, char**& argv, const TransportOptions& options) {
  int initialised = 0, finalised = 0;
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  check(MPI_Finalized(&finalised), "MPI_Finalized");
  if (finalised != 0) throw UsageError("MPI has been finalised and cannot be started again; keep one World for the life of the program");
  if (initialised != 0) return join(MPI_COMM_WORLD, options);

  int level = MPI_THREAD_SINGLE;
  tune_tcp();
  check(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  try {
    if (level < MPI_THREAD_MULTIPLE)
      throw UsageError(
          fmt::format("this MPI offers {} at most (Tessera's communication thread calls MPI beside others); use an MPI built "
                      "with MPI_THREAD_MULTIPLE",
                      name_of_level(level)));
    check_launcher();
    connect_in_turn();
    Joined out = duplicate(MPI_COMM_WORLD, options);
    out.owner = MpiOwner::tessera;
    return out;
  } catch (const UsageError&) {
    MPI_Finalize();  // the same on every rank: nobody is left waiting
    throw;
  }
}

}  // namespace tessera::comm::mpi
