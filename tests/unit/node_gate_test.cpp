// The node transport's counters (comm/node/gate.h), every order of their steps: the real code runs on a model of shared memory in which
// each access is a step, and the steps of 2 and 3 ranks are interleaved in every way. A futex wakes only who sleeps; nobody has a deadline.
// So a wake-up that can be lost is found as a state in which all that are not done sleep, and memory that is reused too early as
// a wrong value.
#include <doctest/doctest.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/node/gate.h"

namespace {

using namespace tessera::comm::node;

constexpr std::size_t kMostFibers = 4, kMostRanks = 3, kStack = 32 << 10;

enum class Status : std::uint8_t { runnable, asleep, done };

struct Fiber {
  ucontext_t context;
  alignas(64) std::array<std::byte, kStack> stack;
  Status status;
  const void* sleeps_on;
  std::uint64_t history;  // of what it has seen since its last mark(): with the mark, all it knows
};

class World;
World* world = nullptr;  // the one that is being explored; the model's platform has static functions, like the real one

enum class Bug : std::uint8_t { none, reads_sleepers_first, no_round_at_the_end };
// Whether bells are steps of their own, or part of the step before: far fewer orders, where only the counters are in question.
enum class Bells : std::uint8_t { are_steps, are_not };

struct Model {
  static constexpr std::size_t kChannels = 1;
  struct Word64 {
    std::uint64_t value;
  };
  struct Word32 {
    std::uint32_t value;
  };
  static std::uint64_t load(const Word64& w);
  static std::uint32_t load(const Word32& w);
  static void store(Word64& w, std::uint64_t v);
  static bool compare_exchange(Word64& w, std::uint64_t expected, std::uint64_t desired);
  static void fetch_or(Word64& w, std::uint64_t bits);
  static void add(Word32& w, int by);
  static void sleep(Word32& w, std::uint32_t seen, int until);
  static void wake(Word32& w);
};

struct Shared {
  std::array<GateWords<Model>, kMostRanks> ranks;
  std::array<Model::Word64, kMostRanks> slot;  // what the peers read
  Model::Word64 interrupted;
  std::array<std::uint8_t, kMostRanks> outcome;  // 0 open, 1 completed, 2 stopped
};

class World {
 public:
  using Body = void (*)(int fiber);

  World(int ranks, int fibers, Body body, Bug bug, Bells bells = Bells::are_steps)
      : ranks_(ranks), fibers_(static_cast<std::size_t>(fibers)), bug_(bug), bells_(bells) {
    world = this;
    std::memset(&shared_, 0, sizeof shared_);
    for (std::size_t f = 0; f < fibers_; ++f) {
      Fiber& fiber = fiber_[f];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      fiber.status = Status::runnable;
      fiber.sleeps_on = nullptr;
      fiber.history = 0;
      body_ = body;
      makecontext(&fiber.context, reinterpret_cast<void (*)()>(&World::enter), 1, static_cast<int>(f));
    }
  }

  /// Tries every order. Returns what went wrong first, or nothing.
  std::string explore(const std::function<std::string(const Shared&)>& at_end) {
    std::vector<Snapshot> open;
    open.push_back(take());
    seen_.insert(key());
    while (!open.empty()) {
      const Snapshot at = std::move(open.back());
      open.pop_back();
      bool runs = false, all_done = true;
      for (std::size_t f = 0; f < fibers_; ++f) {
        const Status status = at.fibers[f].status;
        all_done = all_done && status == Status::done;
        if (status != Status::runnable) continue;
        runs = true;
        put(at);
        step(f);
        if (!wrong_.empty()) return wrong_;
        if (seen_.insert(key()).second) open.push_back(take());
      }
      if (all_done) {
        put(at);
        if (std::string found = at_end(shared_); !found.empty()) return found;
      } else if (!runs) {
        return "all that are not done sleep: a wake-up was lost";
      }
    }
    return {};
  }
  std::size_t states() const { return seen_.size(); }

  // For the model's platform and the bodies.
  Shared& shared() { return shared_; }
  int ranks() const { return ranks_; }
  Bug bug() const { return bug_; }
  void wrong(const char* what) { wrong_ = what; }
  /// The fiber forgets what it has seen: what it does from here on depends on `place` alone.
  void mark(std::uint64_t place) { marked_[current_] = fiber_[current_].history = mix(0x51ed, place); }
  void saw(std::uint64_t value) { fiber_[current_].history = mix(fiber_[current_].history, value); }
  /// Lets the others step; returns when it is this fiber's turn.
  void yield_for_bell() {
    if (bells_ == Bells::are_steps) yield();
  }
  void yield() { swapcontext(&fiber_[current_].context, &scheduler_); }
  void sleep_on(const void* word) {
    fiber_[current_].status = Status::asleep;
    fiber_[current_].sleeps_on = word;
    yield();
  }
  void woken() { fiber_[current_].history = mix(marked_[current_], 0xa11a); }  // back at the top of the waiting loop
  void wake_all(const void* word) {
    for (std::size_t f = 0; f < fibers_; ++f)
      if (fiber_[f].status == Status::asleep && fiber_[f].sleeps_on == word) fiber_[f].status = Status::runnable;
  }

 private:
  struct Frozen {
    ucontext_t context;
    Status status;
    const void* sleeps_on;
    std::uint64_t history, marked;
    std::vector<std::byte> stack;  // from the stack pointer up
  };
  struct Snapshot {
    Shared shared;
    std::vector<Frozen> fibers;
  };

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    a = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdull;
    return a ^ (a >> 29);
  }
  static void enter(int f) {
    world->mark(0);
    world->body_(f);
    world->fiber_[static_cast<std::size_t>(f)].status = Status::done;
    world->mark(~std::uint64_t{0});
    for (;;) world->yield();
  }
  static std::size_t used(const Fiber& fiber) {
#if defined(__x86_64__)
    const auto pointer = static_cast<std::uintptr_t>(fiber.context.uc_mcontext.gregs[REG_RSP]);
#else
    const auto pointer = static_cast<std::uintptr_t>(fiber.context.uc_mcontext.sp);
#endif
    const auto top = reinterpret_cast<std::uintptr_t>(fiber.stack.data()) + kStack;
    return pointer < top - kStack ? 0 : std::min(static_cast<std::size_t>(top - pointer) + 256, kStack);
  }
  // A fiber is put back where it was, so that addresses inside its stack stay right.
  Snapshot take() const {
    Snapshot out;
    out.shared = shared_;
    for (std::size_t f = 0; f < fibers_; ++f) {
      const Fiber& fiber = fiber_[f];
      const std::size_t bytes = used(fiber);
      const auto* end = fiber.stack.data() + kStack;
      out.fibers.push_back({fiber.context, fiber.status, fiber.sleeps_on, fiber.history, marked_[f], {end - bytes, end}});
    }
    return out;
  }
  void put(const Snapshot& from) {
    shared_ = from.shared;
    for (std::size_t f = 0; f < fibers_; ++f) {
      const Frozen& frozen = from.fibers[f];
      Fiber& fiber = fiber_[f];
      std::memcpy(&fiber.context, &frozen.context, sizeof fiber.context);
#if defined(__x86_64__)
      fiber.context.uc_mcontext.fpregs = &fiber.context.__fpregs_mem;
#endif
      fiber.status = frozen.status;
      fiber.sleeps_on = frozen.sleeps_on;
      fiber.history = frozen.history;
      marked_[f] = frozen.marked;
      std::memcpy(fiber.stack.data() + kStack - frozen.stack.size(), frozen.stack.data(), frozen.stack.size());
    }
  }
  void step(std::size_t f) {
    current_ = f;
    swapcontext(&scheduler_, &fiber_[f].context);
  }
  std::string key() const {
    std::string out(reinterpret_cast<const char*>(&shared_), sizeof shared_);
    for (std::size_t f = 0; f < fibers_; ++f) {
      out.append(reinterpret_cast<const char*>(&fiber_[f].history), sizeof fiber_[f].history);
      out.push_back(static_cast<char>(fiber_[f].status));
    }
    // Two states with one pair of hashes would hide one of them: 128 bits of many millions of states do not.
    const std::uint64_t h = std::hash<std::string>{}(out);
    std::uint64_t g = 0xcbf29ce484222325ull;
    for (const char c : out) g = (g ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    std::string two(16, '\0');
    std::memcpy(two.data(), &h, 8);
    std::memcpy(two.data() + 8, &g, 8);
    return two;
  }

  int ranks_;
  std::size_t fibers_;
  Bug bug_;
  Bells bells_;
  Body body_ = nullptr;
  Shared shared_;
  std::array<Fiber, kMostFibers> fiber_;
  std::array<std::uint64_t, kMostFibers> marked_{};
  ucontext_t scheduler_;
  std::size_t current_ = 0;
  std::string wrong_;
  std::unordered_set<std::string> seen_;
};

std::uint64_t Model::load(const Word64& w) {
  world->yield();
  world->saw(w.value);
  return w.value;
}
std::uint32_t Model::load(const Word32& w) {
  world->yield_for_bell();
  world->saw(w.value);
  return w.value;
}
void Model::store(Word64& w, std::uint64_t v) {
  world->yield();
  w.value = v;
  world->saw(1);
}
bool Model::compare_exchange(Word64& w, std::uint64_t expected, std::uint64_t desired) {
  world->yield();
  const bool same = w.value == expected;
  if (same) w.value = desired;
  world->saw(same ? 1 : 0);
  return same;
}
void Model::fetch_or(Word64& w, std::uint64_t bits) {
  world->yield();
  w.value |= bits;
  world->saw(2);
}
void Model::add(Word32& w, int by) {
  world->yield_for_bell();
  w.value += static_cast<std::uint32_t>(by);
  world->saw(3);
}
void Model::sleep(Word32& w, std::uint32_t seen, int /*until*/) {
  world->yield_for_bell();
  if (w.value == seen) world->sleep_on(&w);  // the kernel compares and falls asleep in one step
  world->woken();
}
void Model::wake(Word32& w) {
  world->yield_for_bell();
  world->wake_all(&w);
  world->saw(4);
}

struct WordsOfModel {
  GateWords<Model>& operator()(int rank) const { return world->shared().ranks[static_cast<std::size_t>(rank)]; }
};
using ModelGate = Gate<Model, WordsOfModel>;

// Looks for sleepers before it has changed the bell: the classic lost wake-up.
void ring_carelessly() {
  for (int r = 0; r < world->ranks(); ++r) {
    auto& words = world->shared().ranks[static_cast<std::size_t>(r)];
    const bool sleeps = Model::load(words.sleepers) > 0;
    Model::add(words.bell, 1);
    if (sleeps) Model::wake(words.bell);
  }
}

// Two operations after another, each with memory that the peers read and that is written again for the next one.
constexpr std::uint64_t kOperations = 2;

void operate(int rank) {
  ModelGate gate({}, world->ranks(), rank);
  for (std::uint64_t n = 0; n < kOperations; ++n) {
    world->mark(n * 8 + 1);
    Model::store(world->shared().slot[static_cast<std::size_t>(rank)], n + 1);
    if (world->bug() == Bug::reads_sleepers_first) {
      Model::compare_exchange(world->shared().ranks[static_cast<std::size_t>(rank)].begun[0], n, n + 1);
      ring_carelessly();
    } else {
      gate.begin(0, n);
    }
    world->mark(n * 8 + 2);
    gate.await([&] { return gate.all_have_begun(0, n); }, 0);
    world->mark(n * 8 + 3);
    for (int r = 0; r < world->ranks(); ++r)
      if (Model::load(world->shared().slot[static_cast<std::size_t>(r)]) != n + 1) world->wrong("memory was reused before all had read it");
    if (world->bug() == Bug::no_round_at_the_end) continue;
    world->mark(n * 8 + 4);
    if (world->bug() == Bug::reads_sleepers_first) {
      Model::store(world->shared().ranks[static_cast<std::size_t>(rank)].round[0], n + 1);
      ring_carelessly();
    } else {
      gate.pass(0, n + 1);
    }
    world->mark(n * 8 + 5);
    gate.await([&] { return gate.all_have_passed(0, n + 1); }, 0);
  }
}

// One operation, and somebody who interrupts at any moment: the last fiber, a second thread of rank 0.
void operate_or_be_interrupted(int fiber) {
  const bool interrupter = fiber == world->ranks();
  const int rank = interrupter ? 0 : fiber;
  ModelGate gate({}, world->ranks(), rank);
  Shared& shared = world->shared();
  if (interrupter) {
    Model::store(shared.interrupted, 1);
    gate.close();
    return;
  }
  auto& outcome = shared.outcome[static_cast<std::size_t>(rank)];
  if (!gate.begin(0, 0)) {
    outcome = 2;
    return;
  }
  world->mark(1);
  std::uint8_t found = 0;
  gate.await(
      [&] {
        if (Model::load(shared.interrupted) != 0) {
          gate.close();
          found = gate.all_have_begun(0, 0) ? 1 : 2;
          return true;
        }
        if (!gate.all_have_begun(0, 0)) return false;
        found = 1;
        return true;
      },
      0);
  outcome = found;
}

std::string nothing(const Shared&) { return {}; }

}  // namespace

TEST_CASE("node's gate: in every order of steps, nobody sleeps through a change and nothing is reused before all have read it") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto all = std::make_unique<World>(ranks, ranks, operate, Bug::none);
    CHECK(all->explore(nothing) == "");
    MESSAGE(ranks << " ranks: " << all->states() << " states");
    CHECK(all->states() > 1000);
  }
}

TEST_CASE("node's gate: the model finds a lost wake-up and a reuse that is too early where they are planted") {
  const auto lost = std::make_unique<World>(2, 2, operate, Bug::reads_sleepers_first);
  CHECK(lost->explore(nothing) == "all that are not done sleep: a wake-up was lost");
  const auto reused = std::make_unique<World>(2, 2, operate, Bug::no_round_at_the_end);
  CHECK(reused->explore(nothing) == "memory was reused before all had read it");
}

TEST_CASE("node's gate: whenever an interrupt comes, an operation ends alike on all ranks") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto all =
        std::make_unique<World>(ranks, ranks + 1, operate_or_be_interrupted, Bug::none, ranks == 2 ? Bells::are_steps : Bells::are_not);
    int completed = 0, stopped = 0;
    const std::string found = all->explore([&](const Shared& shared) {
      for (int r = 1; r < ranks; ++r)
        if (shared.outcome[static_cast<std::size_t>(r)] != shared.outcome[0])
          return std::string("completed on one rank, stopped on another");
      ++(shared.outcome[0] == 1 ? completed : stopped);
      return std::string();
    });
    CHECK(found == "");
    CHECK(completed > 0);
    CHECK(stopped > 0);
    MESSAGE(ranks << " ranks: " << all->states() << " states");
  }
}
