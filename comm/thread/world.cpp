#include "tessera/world.h"

#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/membership.h"
#include "comm/options.h"
#include "comm/thread/communicator.h"
#include "tessera/error.h"

namespace tessera {

namespace {

/// What a body threw, as text for its peers.
std::string text_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) { return e.what(); } catch (...) {
    return "an exception of unknown type";
  }
}

bool is_echo(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CommFailure&) { return true; } catch (const StepInterrupted&) {
    return true;
  } catch (...) { return false; }
}

}  // namespace

std::vector<World> thread_world(int ranks, const TransportOptions& options) {
  comm::check_size(ranks);
  comm::check_options(options);
  const auto hub = std::make_shared<comm::Hub>(ranks);
  std::vector<World> out;
  out.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) out.emplace_back(std::make_shared<comm::ThreadCommunicator>(hub, Rank(r), options));
  return out;
}

void run_threads(int ranks, const std::function<void(World&)>& body, const TransportOptions& options) {
  std::vector<World> worlds = thread_world(ranks, options);
  std::vector<std::exception_ptr> thrown(worlds.size());
  std::vector<std::thread> threads;
  threads.reserve(worlds.size());
  const auto run = [&](std::size_t r) {
    World world = std::move(worlds[r]);  // gone when the body is: peers that still wait for this rank are told
    try {
      body(world);
    } catch (...) {
      thrown[r] = std::current_exception();
      world.communicator().abort(text_of(thrown[r]));
    }
  };
  std::exception_ptr no_thread;
  try {
    for (std::size_t r = 0; r < worlds.size(); ++r) threads.emplace_back(run, r);
  } catch (const std::system_error&) {
    no_thread = std::current_exception();
    worlds.back().communicator().abort("no more threads could be started");
  }
  for (std::thread& thread : threads) thread.join();
  if (no_thread != nullptr) std::rethrow_exception(no_thread);
  for (const std::exception_ptr& e : thrown)
    if (e != nullptr && !is_echo(e)) std::rethrow_exception(e);
  for (const std::exception_ptr& e : thrown)
    if (e != nullptr) std::rethrow_exception(e);
}

}  // namespace tessera
