// Ranks that disagree, do not come, leave, or break: every rank still there is told, soon, and by name [B27, B28, B33].
#include <thread>

#include "tests/ranks/communicator_values.h"
#include "tests/ranks/rank_test.h"

using namespace tessera;
using namespace tessera::testing;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr TransportOptions kPatient{.deadline = milliseconds(20'000)};
constexpr TransportOptions kQuick{.deadline = milliseconds(1'000)};

struct Told {
  bool failed = false;
  std::string message, verb, unit, dump;
  std::vector<Rank> culprits;
};

/// What the operation failed of.
Told told(Pending pending) {
  Told out;
  try {
    pending.wait_host();
  } catch (const CommFailure& e) { out = {true, e.what(), e.verb, e.unit, e.dump, e.culprits}; }
  return out;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
bool has(const std::vector<Rank>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), Rank(rank)) != ranks.end(); }

/// A barrier of a communicator that the test does not break, so that nobody's world ends before all have seen the failure.
class Meeting {
 public:
  explicit Meeting(World& world)
      : communicator_(world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), milliseconds(30'000))) {
    all_here();  // what a test breaks next must not reach a rank that is still in split()
  }
  void all_here() {
    Stream stream("meeting");
    communicator_->barrier({}, stream).wait_host();
  }

 private:
  std::shared_ptr<Communicator> communicator_;
};

int last_of(const World& world) { return world.size() - 1; }
bool is_last(const World& world) { return world.rank().value == last_of(world); }

}  // namespace

RANK_TEST_WITH("order: another unit on one rank is an error on every rank, naming both sides", {kPatient})(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  c.name_units({"wte", "h.0", "h.1"});
  Stream stream("reduce");
  std::vector<float> full(static_cast<std::size_t>(16 * world.size())), shard(16);
  Label mine = label(Channel::reduce, is_last(world) ? 2 : 1, 4);
  mine.leaf = 0;
  const auto begun = Clock::now();
  const Told t = told(c.reduce_scatter({full.data()}, {shard.data()}, Elements(16), DType::f32, Fold::start, mine, stream));
  CHECK(t.failed);
  CHECK(Clock::now() - begun < milliseconds(10'000));
  CAPTURE(t.message);
  const std::string last = std::to_string(last_of(world));
  CHECK(has(t.message, "is in reduce_scatter #0 of unit 'h.0' step 4 leaf 0 (" + std::to_string(16 * world.size()) + " elements"));
  CHECK(has(t.message, "rank " + last + " is in reduce_scatter #0 of unit 'h.1' step 4 leaf 0"));
  CHECK(t.culprits.size() == 2);
  CHECK(has(t.culprits, last_of(world)));
  CHECK(t.verb == "reduce_scatter");
  CHECK(has(t.dump, "reduce #0 reduce_scatter of unit 'h."));
  CHECK(has(t.dump, "failed"));

  // The failure is final, and the first cause stays.
  const Told again = told(c.barrier({}, stream));
  CHECK(again.failed);
  CHECK(again.message == t.message);
  meeting.all_here();
}

RANK_TEST_WITH("order: another size, type, verb, root or detail is an error on every rank", {kPatient})(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  const bool odd = is_last(world);
  for (int what = 0; what < 6; ++what) {
    const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), milliseconds(20'000));
    Stream stream("any");
    std::vector<float> data(64), full(static_cast<std::size_t>(64 * world.size()));
    Label l = label(Channel::gather);
    Pending pending;
    switch (what) {
      case 0: pending = c->all_gather({data.data()}, {full.data()}, Elements(odd ? 5 : 6), DType::f32, l, stream); break;
      case 1: pending = c->all_gather({data.data()}, {full.data()}, Elements(4), odd ? DType::f32 : DType::bf16, l, stream); break;
      case 2:
        if (odd) pending = c->barrier(l, stream);
        else pending = c->broadcast({data.data()}, Elements(64), DType::f32, Rank(0), l, stream);
        break;
      case 3: pending = c->broadcast({data.data()}, Elements(64), DType::f32, Rank(odd ? 1 : 0), l, stream); break;
      case 4:
        l.detail = odd ? 7 : 8;
        pending = c->barrier(l, stream);
        break;
      case 5: pending = c->all_reduce({data.data()}, Elements(3), DType::f32, odd ? ReduceOp::max : ReduceOp::min, l, stream); break;
    }
    const Told t = told(std::move(pending));
    CAPTURE(what);
    CHECK(t.failed);
    CHECK(has(t.culprits, last_of(world)));
    meeting.all_here();
  }
}

RANK_TEST_WITH("order: two calls in another order are an error on every rank", {kPatient})(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  Stream stream("gather");
  std::vector<float> data(3), full(static_cast<std::size_t>(3 * world.size()));
  const int first = is_last(world) ? 1 : 0;
  Pending a = c.all_gather({data.data()}, {full.data()}, Elements(3), DType::f32, label(Channel::gather, first), stream);
  Pending b = c.all_gather({data.data()}, {full.data()}, Elements(3), DType::f32, label(Channel::gather, 1 - first), stream);
  const Told t = told(std::move(a));
  CHECK(t.failed);
  CHECK(has(t.message, "unit #0"));
  CHECK(has(t.message, "unit #1"));
  CHECK(told(std::move(b)).failed);
  meeting.all_here();
}

RANK_TEST_WITH("order: an extra call finds out at once that a rank has left, and after how many calls", {kPatient})(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  Stream stream("control");
  c.barrier({}, stream).wait_host();
  meeting.all_here();  // nobody is in that barrier any more
  if (is_last(world)) {
    c.leave();
    CHECK_THROWS_AS((void)c.barrier({}, stream), UsageError);
  } else {
    const auto begun = Clock::now();
    const Told t = told(c.barrier({}, stream));
    CHECK(Clock::now() - begun < milliseconds(10'000));
    CHECK(t.failed);
    CAPTURE(t.message);
    CHECK(t.culprits == std::vector<Rank>{Rank(last_of(world))});
    CHECK(has(t.message, "rank " + std::to_string(last_of(world)) + " left after "));
    CHECK(has(t.message, "barrier #"));
  }
  meeting.all_here();
}

RANK_TEST_WITH("order: a rank that leaves still takes part in what it has called", {kPatient})(World& world) {
  Communicator& c = world.communicator();
  Stream stream("control");
  std::vector<Pending> pending;
  for (int i = 0; i < 20; ++i) pending.push_back(c.barrier({}, stream));
  c.leave();
  for (Pending& p : pending) CHECK_NOTHROW(p.wait_host());
}

RANK_TEST_WITH("deadline: the rank that does not come is named with verb and unit before the deadline is long over", {kQuick})
(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  c.name_units({"wte", "h.3"});
  Stream stream("reduce");
  std::vector<float> full(static_cast<std::size_t>(16 * world.size())), shard(16);
  if (!is_last(world)) {
    const auto begun = Clock::now();
    const Told t =
        told(c.reduce_scatter({full.data()}, {shard.data()}, Elements(16), DType::f32, Fold::start, label(Channel::reduce, 1), stream));
    const auto took = Clock::now() - begun;
    CHECK(t.failed);
    CHECK(took > milliseconds(400));
    CHECK(took < milliseconds(3'000));
    CAPTURE(t.message);
    CHECK(t.culprits == std::vector<Rank>{Rank(last_of(world))});
    CHECK(t.verb == "reduce_scatter");
    CHECK(t.unit == "h.3");
    CHECK(has(t.dump, "waiting for rank " + std::to_string(last_of(world))));
  }
  meeting.all_here();
  // The one that did not come is told when it comes.
  CHECK(told(c.barrier({}, stream)).failed);
}

RANK_TEST_WITH("deadline: an operation behind one that waits names the late rank, also where its own deadline comes first", {kQuick})
(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  if (!is_last(world)) {
    Stream one("one"), two("two");
    Pending first = c.barrier(label(Channel::reduce), one);
    c.set_deadline(c.deadline() / 4);
    Pending second = c.barrier(label(Channel::reduce), two);
    const std::vector<Rank> late{Rank(last_of(world))};
    CHECK(told(std::move(first)).culprits == late);
    CHECK(told(std::move(second)).culprits == late);
  }
  meeting.all_here();
}

RANK_TEST_WITH("deadline: the rank that keeps the others waiting is named, not one that waits for it", {kQuick})(World& world) {
  if (world.size() < 3) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  Stream stream("gather"), other("reduce");
  // Rank 0 waits for all on one channel; all but 0 and the last wait for the last on another; the last does nothing.
  Told t;
  if (world.rank().value == 0) {
    t = told(c.barrier(label(Channel::gather), stream));
  } else if (!is_last(world)) {
    Pending late = c.barrier(label(Channel::reduce), other);
    t = told(std::move(late));
  }
  if (!is_last(world)) {
    CHECK(t.failed);
    CAPTURE(t.message);
    if (world.size() == 3 || has(t.message, "#0 of unit #0")) CHECK(has(t.culprits, last_of(world)));
    CHECK_FALSE(has(t.culprits, 1));
  }
  meeting.all_here();
}

RANK_TEST_WITH("abort: every rank's pending and later operations name the rank and the cause", {kPatient})(World& world) {
  if (world.size() == 1) return;
  Meeting meeting(world);
  Communicator& c = world.communicator();
  Stream stream("control");
  if (is_last(world)) {
    c.abort("the disk is full");
    CHECK_THROWS_AS((void)c.barrier({}, stream), UsageError);
  } else {
    const auto begun = Clock::now();
    const Told t = told(c.barrier({}, stream));
    CHECK(Clock::now() - begun < milliseconds(10'000));
    CHECK(t.failed);
    CHECK(t.culprits == std::vector<Rank>{Rank(last_of(world))});
    CHECK(has(t.message, "the disk is full"));
    CHECK(told(c.barrier({}, stream)).failed);
  }
  meeting.all_here();
}

RANK_TEST_WITH("failure: a failed communicator leaves its parent and siblings alone", {kPatient})(World& world) {
  if (world.size() == 1) return;
  const auto ledger = std::make_shared<MemoryLedger>();
  const auto good = world.communicator().split(0, world.rank().value, ledger, milliseconds(20'000));
  const auto bad = world.communicator().split(0, world.rank().value, ledger, milliseconds(20'000));
  Stream stream("control");
  if (is_last(world)) bad->abort("on purpose");
  else CHECK(told(bad->barrier({}, stream)).failed);
  CHECK_NOTHROW(good->barrier({}, stream).wait_host());
  CHECK_NOTHROW(world.communicator().barrier({}, stream).wait_host());
}

RANK_TEST("arguments: what no rank could do is a UsageError before anything is sent")(World& world) {
  Communicator& c = world.communicator();
  Stream stream("any");
  std::vector<float> full(static_cast<std::size_t>(8 * world.size())), shard(8);
  const Label l = label(Channel::gather);
  const auto calls = c.submitted(Channel::gather);
  CHECK_THROWS_AS((void)c.all_gather({shard.data()}, {full.data()}, Elements(-1), DType::f32, l, stream), UsageError);
  CHECK_THROWS_AS((void)c.all_gather({nullptr}, {full.data()}, Elements(8), DType::f32, l, stream), UsageError);
  CHECK_THROWS_AS((void)c.all_gather({shard.data()}, {full.data()}, Elements(INT64_MAX / 2), DType::f32, l, stream), UsageError);
  CHECK_THROWS_AS((void)c.all_gather({reinterpret_cast<char*>(shard.data()) + 1}, {full.data()}, Elements(1), DType::f32, l, stream),
                  UsageError);
  CHECK_THROWS_AS((void)c.all_gather({full.data() + 1}, {full.data()}, Elements(8), DType::f32, l, stream), UsageError);
  float* own = full.data() + 8 * world.rank().value;
  CHECK_THROWS_AS((void)c.reduce_scatter({full.data()}, {own}, Elements(8), DType::f32, Fold::onward, l, stream), UsageError);
  CHECK_THROWS_AS((void)c.reduce_scatter({full.data()}, {full.data()}, Elements(8), DType::bf16, Fold::start, l, stream, DType::f32),
                  UsageError);
  CHECK_THROWS_AS((void)c.reduce_scatter({full.data()}, {shard.data()}, Elements(8), DType::f32, Fold::start, l, stream, DType::bf16),
                  UsageError);
  CHECK_THROWS_AS((void)c.broadcast({shard.data()}, Elements(8), DType::f32, Rank(world.size()), l, stream), UsageError);
  CHECK_THROWS_AS((void)c.scratch_bytes(0), UsageError);
  CHECK_THROWS_AS(c.set_deadline(milliseconds(0)), UsageError);
  CHECK_THROWS_AS((void)c.split(0, 0, std::make_shared<MemoryLedger>(), milliseconds(-1)), UsageError);
  CHECK(c.submitted(Channel::gather) == calls);
  CHECK_NOTHROW(c.all_gather({nullptr}, {nullptr}, Elements(0), DType::f32, l, stream).wait_host());
}

RANK_TEST_WITH("dump: the last 64 operations with their channel, number, verb, unit and state [B33]", {kPatient})(World& world) {
  Communicator& c = world.communicator();
  c.name_units({"wte"});
  Stream stream("gather");
  for (int i = 0; i < 70; ++i) c.barrier(label(Channel::gather, 0, i), stream).wait_host();
  const auto records = c.recent();
  REQUIRE(records.size() == 64);
  CHECK(records.front().sequence == 6);
  CHECK(records.back().sequence == 69);
  CHECK(records.back().label.step == 69);
  CHECK(records.back().finished >= records.back().started);
  CHECK(records.back().started >= records.back().submitted);
  CHECK_FALSE(records.back().failed);
  CHECK(has(c.dump(), "gather #69 barrier of unit 'wte' step 69, 0 bytes: done in"));
  CHECK_FALSE(has(c.dump(), "gather #5 "));
  CHECK(c.unit_name(UnitId(1)) == "unit #1");
}

RANK_TEST_WITH("on_finish: called once for every operation, finished or failed", {kQuick})(World& world) {
  const auto c = world.communicator().split(0, world.rank().value, std::make_shared<MemoryLedger>(), milliseconds(20'000));
  std::atomic<int> finished{0}, failed{0};
  c->on_finish([&](const OperationRecord& r) { ++(r.failed ? failed : finished); });
  {
    Stream stream("control");
    for (int i = 0; i < 10; ++i) c->barrier({}, stream).wait_host();
    CHECK(finished == 10);
    CHECK(failed == 0);
    Meeting meeting(world);
    if (is_last(world)) c->abort("on purpose");
    else CHECK(told(c->barrier({}, stream)).failed);
    meeting.all_here();
  }
  CHECK(finished == 10);
  CHECK(failed == (is_last(world) ? 0 : 1));
}
