#include "tessera/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/node/communicator.h"
#include "comm/node/segment.h"
#include "comm/options.h"
#include "tessera/error.h"

namespace tessera {

namespace {

/// The keys of all ranks' hosts.
std::vector<std::uint64_t> hosts_of(Communicator& over) {
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
  if (!one_host(hosts_of(over.communicator())))
    throw UsageError("node_world: the ranks are on several hosts; use the world they met on, or fastest_world");
  return World(comm::node::assemble(over.communicator(), 0, over.rank().value, options, nullptr));
}

ChosenWorld fastest_world(const World& over, const TransportOptions& options) {
  comm::check_options(options);
  const std::string own(over.transport());
  if (over.size() == 1 || own == "thread") return {over, fmt::format("{}: nobody is elsewhere", own)};
  if (!one_host(hosts_of(over.communicator()))) return {over, fmt::format("{}: the ranks are on several hosts", own)};
  try {
    return {node_world(over, options), fmt::format("node: all {} ranks are processes of one host", over.size())};
  } catch (const CommFailure&) { throw; } catch (const RuntimeFailure& e) {
    return {over, fmt::format("{}: {}", own, e.what())};
  }
}

}  // namespace tessera
