#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <vector>

#include "tessera/stream.h"

using namespace tessera;

TEST_CASE("stream: runs what is enqueued in order, one at a time") {
  Stream stream("work");
  std::vector<int> order;  // not guarded: the stream's promise is what is tested
  for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  REQUIRE(order.size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("event: is complete when everything enqueued before it has run, and not earlier") {
  Stream stream("work");
  std::latch open(1);
  std::atomic<int> ran{0};
  stream.enqueue([&] {
    open.wait();
    ++ran;
  });
  const Event event = stream.record();
  stream.enqueue([&] { ++ran; });
  const Event copy = event;
  CHECK_FALSE(event.complete());
  open.count_down();
  copy.wait_host();
  CHECK(event.complete());
  CHECK(ran >= 1);
  stream.synchronize();
  CHECK(ran == 2);
}

TEST_CASE("event: default-constructed is complete") {
  const Event event;
  CHECK(event.complete());
  event.wait_host();
}

TEST_CASE("stream: wait orders one stream behind another and does not block the caller") {
  Stream first("first"), second("second");
  std::latch open(1);
  int value = 0;
  first.enqueue([&] {
    open.wait();
    value = 42;
  });
  second.wait(first.record());
  int seen = 0;
  second.enqueue([&] { seen = value; });
  // This line is reached while `first` is still held.
  CHECK(value == 0);
  open.count_down();
  second.synchronize();
  CHECK(seen == 42);
}

TEST_CASE("stream: a wait for its own event does not hang") {
  Stream stream("work");
  const Event event = stream.record();
  stream.wait(event);
  stream.synchronize();
  CHECK(event.complete());
}

TEST_CASE("stream: its end finishes the queue, and events outlive it") {
  std::atomic<int> ran{0};
  Event event;
  {
    Stream stream("work");
    for (int i = 0; i < 100; ++i) stream.enqueue([&ran] { ++ran; });
    event = stream.record();
  }
  CHECK(ran == 100);
  CHECK(event.complete());
}

TEST_CASE("stream: what an item holds is gone when synchronize returns") {
  Stream stream("work");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  stream.enqueue([held] {});
  held.reset();
  stream.synchronize();
  CHECK(watched.expired());
}

TEST_CASE("stream: work may enqueue more work") {
  Stream stream("a name longer than the fifteen characters that Linux keeps");
  std::atomic<int> ran{0};
  stream.enqueue([&] { stream.enqueue([&] { ++ran; }); });
  stream.synchronize();
  CHECK(ran == 1);
  CHECK(stream.name().size() > 15);
}
