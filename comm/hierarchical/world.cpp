#include "tessera/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/hierarchical/communicator.h"
#include "comm/hierarchical/places.h"
#include "comm/node/communicator.h"
#include "comm/node/segment.h"
#include "comm/options.h"
#include "tessera/error.h"

namespace tessera {

namespace {

/// The keys of all ranks' hosts.
std::vector<std::uint64_t> hosts_of(Communicator& over, const TransportOptions& options) {
  std::vector<std::uint64_t> pretended;
  for (int r = 0; options.ranks_per_node > 0 && r < over.size(); ++r)
    pretended.push_back(static_cast<std::uint64_t>(r / options.ranks_per_node));
  if (!pretended.empty()) return pretended;
  const std::uint64_t mine = comm::node::host_key();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(over.size()));
  Stream stream("tessera node");
  over.all_gather({&mine}, {all.data()}, Elements(1), DType::i64, {}, stream).wait_host();
  return all;
}

bool one_host(const std::vector<std::uint64_t>& hosts) {
  return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
}

}  // namespace

World node_world(const World& over, const TransportOptions& options) {
  comm::check_options(options);
  if (over.transport() == "thread" && over.size() > 1)
    throw UsageError("node_world over threads: they share all their memory already; use the thread world itself");
  if (!one_host(hosts_of(over.communicator(), {})))
    throw UsageError("node_world: the ranks are on several hosts; use hierarchical_world, or fastest_world");
  return World(comm::node::assemble(over.communicator(), 0, over.rank().value, options, nullptr, std::make_shared<const World>(over)));
}

World hierarchical_world(const World& over, const TransportOptions& options) {
  comm::check_options(options);
  if (over.transport() != "mpi") throw UsageError("hierarchical_world: the ranks must have met over mpi");
  const auto places = comm::hierarchical::places_of(hosts_of(over.communicator(), options));
  if (!places)
    throw UsageError(
        "hierarchical_world: it takes equally many ranks on each host, each host's in a row (mpirun --map-by slot, or srun -m block)");
  auto whole = over.communicator().split(0, over.rank().value, std::make_shared<MemoryLedger>(), options.deadline);
  return World(std::make_shared<comm::hierarchical::HierarchicalCommunicator>(std::move(whole), *places, options, nullptr));
}

ChosenWorld fastest_world(const World& over, const TransportOptions& options) {
  comm::check_options(options);
  const std::string own(over.transport());
  if (over.size() == 1 || own == "thread") return {over, fmt::format("{}: nobody is elsewhere", own)};
  const std::vector<std::uint64_t> hosts = hosts_of(over.communicator(), options);
  const auto places = comm::hierarchical::places_of(hosts);
  if (!one_host(hosts) && (!places || places->per_host == 1 || own != "mpi"))
    return {over, fmt::format("{}: {}", own,
                              places ? "one rank on each of several hosts" : "the hosts have different numbers of ranks, or not in a row")};
  try {
    if (!one_host(hosts))
      return {hierarchical_world(over, options),
              fmt::format("hierarchical: {} ranks on each of {} hosts", places->per_host, places->hosts)};
    return {node_world(over, options), fmt::format("node: all {} ranks are processes of one host", over.size())};
  } catch (const CommFailure&) { throw; } catch (const StepInterrupted&) {
    throw;
  } catch (const RuntimeFailure& e) { return {over, fmt::format("{}: {}", own, e.what())}; }
}

}  // namespace tessera
