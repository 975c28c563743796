#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "shard/flat_layout.h"
#include "tests/property/layout_owners.h"

using namespace tessera;
using namespace tessera::shard;

namespace {

constexpr int kCases = 400;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t in(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(engine_); }

  std::vector<std::int64_t> shape() {
    switch (in(0, 5)) {
      case 0: return {};
      case 1: return {0};
      case 2: return {in(1, 9)};
      case 3: return {in(60, 70), in(60, 70)};
      case 4: return {in(1, 2000)};
      default: return {in(1, 5), in(1, 50), in(1, 50)};
    }
  }

  UnitSpec unit() {
    UnitSpec unit;
    unit.name = "random";
    const std::int64_t tensors = in(0, 9);
    for (std::int64_t i = 0; i < tensors; ++i)
      unit.tensors.push_back({std::string("t") + std::to_string(i), shape(), in(0, 2) == 0 ? DType::bf16 : DType::f32,
                              in(0, 2) == 0 ? Training::frozen : Training::trainable});
    return unit;
  }

  int shards() { return static_cast<int>(in(0, 3) == 0 ? in(1, 64) : in(1, 8)); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace

TEST_CASE("layout: every element of random units has exactly one owner (B1)") {
  Random random(1);
  for (int i = 0; i < kCases; ++i) {
    CAPTURE(i);
    const UnitSpec unit = random.unit();
    const FlatLayout layout(unit, random.shards());
    const auto [wrong, seen] = wrongly_owned(layout, unit);
    CHECK(wrong == 0);
    std::int64_t all = 0;
    for (const TensorSpec& t : unit.tensors) all += t.elements().value;
    CHECK(seen == all);
  }
}

TEST_CASE("layout: tensors of random units do not overlap and lie in declaration order inside their segment") {
  Random random(2);
  for (int i = 0; i < kCases; ++i) {
    CAPTURE(i);
    const UnitSpec unit = random.unit();
    const FlatLayout layout(unit, random.shards());
    std::size_t placed = 0;
    for (std::size_t s = 0; s < layout.segments().size(); ++s) {
      const Segment& segment = layout.segments()[s];
      Elements end{};
      for (const int t : segment.tensors) {
        const TensorPlace& place = layout.place(t);
        const TensorSpec& spec = unit.tensors[static_cast<std::size_t>(t)];
        CHECK(place.segment == static_cast<int>(s));
        CHECK(spec.dtype == segment.dtype);
        CHECK(spec.training == segment.training);
        CHECK(place.elements == spec.elements());
        CHECK(place.flat_offset >= end);
        CHECK(place.flat_offset.value % (place.elements.value >= kLargeTensor ? kBlock : kTensorAlignment) == 0);
        if (place.elements.value > 0) end = place.flat_offset + place.elements;
        ++placed;
      }
      CHECK(segment.content == end);
    }
    CHECK(placed == unit.tensors.size());
  }
}

TEST_CASE("layout: random segments are padded to whole blocks per shard, or replicated where that would more than double them") {
  Random random(3);
  int replicated = 0;
  for (int i = 0; i < kCases; ++i) {
    CAPTURE(i);
    const int shards = random.shards();
    const FlatLayout layout(random.unit(), shards);
    for (const Segment& segment : layout.segments()) {
      const std::int64_t granule = kBlock * shards;
      const std::int64_t padding = (granule - segment.content.value % granule) % granule;
      CHECK(segment.replicated == (padding > segment.content.value));
      CHECK(segment.per_shard * segment.shards == segment.full);
      if (segment.replicated) {
        ++replicated;
        CHECK(segment.shards == 1);
        const std::int64_t multiple = segment.content.value < kBlock ? kTensorAlignment : kBlock;
        CHECK(segment.full.value % multiple == 0);
        CHECK(segment.full >= segment.content);
        CHECK(segment.full - segment.content < Elements(multiple));
      } else {
        CHECK(segment.shards == shards);
        CHECK(segment.full.value == segment.content.value + padding);
        CHECK(segment.per_shard.value % kBlock == 0);
      }
    }
  }
  CHECK(replicated > kCases / 10);
}

TEST_CASE("layout: the pieces of any split of a range are the range's pieces, cut") {
  Random random(4);
  for (int i = 0; i < kCases; ++i) {
    CAPTURE(i);
    const FlatLayout layout(random.unit(), random.shards());
    for (std::size_t s = 0; s < layout.segments().size(); ++s) {
      const int segment = static_cast<int>(s);
      const Elements full = layout.segments()[s].full;
      std::vector<TensorRange> joined;
      for (Elements at{}; at < full;) {
        const Elements n(random.in(0, (full - at).value));
        for (const TensorRange& r : layout.pieces(segment, at, n)) {
          CHECK(r.elements > Elements(0));
          CHECK(r.flat_offset >= at);
          CHECK(r.flat_offset + r.elements <= at + n);
          CHECK(r.flat_offset - r.tensor_offset == layout.place(r.tensor).flat_offset);
          if (!joined.empty() && joined.back().tensor == r.tensor) {
            CHECK(joined.back().flat_offset + joined.back().elements == r.flat_offset);
            joined.back().elements += r.elements;
          } else {
            joined.push_back(r);
          }
        }
        at += n;
      }
      const std::vector<TensorRange> whole = layout.pieces(segment, Elements(0), full);
      REQUIRE(joined.size() == whole.size());
      for (std::size_t k = 0; k < whole.size(); ++k) {
        CHECK(joined[k].tensor == whole[k].tensor);
        CHECK(joined[k].tensor_offset == Elements(0));
        CHECK(joined[k].elements == layout.place(whole[k].tensor).elements);
      }
    }
  }
}

TEST_CASE("layout: shard ranges do not depend on the dtype") {
  Random random(5);
  for (int i = 0; i < kCases; ++i) {
    CAPTURE(i);
    UnitSpec unit = random.unit();
    for (TensorSpec& t : unit.tensors) t.dtype = DType::f32;
    UnitSpec narrow = unit;
    for (TensorSpec& t : narrow.tensors) t.dtype = DType::u8;
    const int shards = random.shards();
    const FlatLayout a(unit, shards);
    const FlatLayout b(narrow, shards);
    REQUIRE(a.segments().size() == b.segments().size());
    for (std::size_t s = 0; s < a.segments().size(); ++s) {
      CHECK(a.segments()[s].full == b.segments()[s].full);
      CHECK(a.segments()[s].per_shard == b.segments()[s].per_shard);
      for (int index = 0; index < a.segments()[s].shards; ++index)
        CHECK(a.shard_begin(static_cast<int>(s), index) == b.shard_begin(static_cast<int>(s), index));
    }
  }
}
