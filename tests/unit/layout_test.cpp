#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "shard/flat_layout.h"
#include "tessera/error.h"
#include "tests/property/layout_owners.h"

using namespace tessera;
using namespace tessera::shard;

namespace {

UnitSpec unit_of(const std::vector<std::int64_t>& sizes, DType dtype = DType::f32) {
  UnitSpec unit;
  unit.name = "u";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    unit.tensors.push_back({std::string("t") + std::to_string(i), {sizes[i]}, dtype, Training::trainable});
  return unit;
}

void check_one_owner(const UnitSpec& unit) {
  for (int shards = 1; shards <= 8; ++shards) {
    CAPTURE(shards);
    const auto [wrong, seen] = wrongly_owned(FlatLayout(unit, shards), unit);
    CHECK(wrong == 0);
    std::int64_t all = 0;
    for (const TensorSpec& t : unit.tensors) all += t.elements().value;
    CHECK(seen == all);
  }
}

}  // namespace

TEST_CASE("layout: tensors of 0, 1, 3, 5, 7 and 1023 elements, in any order, have one owner per element on 1 to 8 ranks (B1)") {
  std::vector<std::int64_t> sizes = {0, 1, 3, 5, 7, 1023};
  do check_one_owner(unit_of(sizes));
  while (std::next_permutation(sizes.begin(), sizes.end()));
  for (const std::int64_t size : sizes) check_one_owner(unit_of({size}));
}

TEST_CASE("layout: sharded units of odd sizes have one owner per element on 1 to 8 ranks (B1)") {
  check_one_owner(unit_of({8191, 0, 4097, 1023, 4095, 5000}));
  check_one_owner(unit_of({20001, 1, 3}));
}

TEST_CASE("layout: a tensor without elements, first, in the middle, last or alone, has a place and no piece (B1)") {
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{0, 700, 5000}, {700, 0, 5000}, {700, 5000, 0}, {0, 0, 700}, {700, 0, 0}, {0}, {0, 0}}) {
    const UnitSpec unit = unit_of(sizes);
    for (int shards = 1; shards <= 8; ++shards) {
      const FlatLayout layout(unit, shards);
      REQUIRE(layout.segments().size() == 1);
      const Segment& segment = layout.segments()[0];
      for (const TensorRange& r : layout.pieces(0, Elements(0), segment.full)) CHECK(sizes[static_cast<std::size_t>(r.tensor)] > 0);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const TensorPlace& place = layout.place(static_cast<int>(i));
        CHECK(place.elements == Elements(sizes[i]));
        CHECK(place.flat_offset.value % kTensorAlignment == 0);
        CHECK(place.flat_offset + place.elements <= segment.full);
      }
    }
    check_one_owner(unit);
  }
}

TEST_CASE("layout: an empty tensor moves no other tensor and adds nothing to the segment (B1)") {
  const FlatLayout without(unit_of({700, 5000}), 3);
  const FlatLayout with(unit_of({0, 700, 0, 5000, 0}), 3);
  CHECK(with.place(1).flat_offset == without.place(0).flat_offset);
  CHECK(with.place(3).flat_offset == without.place(1).flat_offset);
  CHECK(with.segments()[0].content == without.segments()[0].content);
  CHECK(with.segments()[0].full == without.segments()[0].full);
}

TEST_CASE("layout: a unit without elements takes no memory, one without tensors has no segment (B1)") {
  const FlatLayout empty(unit_of({0, 0}), 4);
  REQUIRE(empty.segments().size() == 1);
  CHECK(empty.segments()[0].full == Elements(0));
  CHECK(empty.segments()[0].per_shard == Elements(0));
  CHECK(empty.pieces(0, Elements(0), Elements(0)).empty());
  CHECK(FlatLayout(unit_of({}), 4).segments().empty());
}

TEST_CASE("layout: every tensor starts on a 64-byte boundary of its shard, large ones at a norm block, for every dtype (B2)") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8}) {
    const FlatLayout layout(unit_of({1, 3, 4095, 4096, 65, 1, 5000, 7}, dtype), 2);
    for (int t = 0; t < 8; ++t) {
      const TensorPlace& place = layout.place(t);
      CHECK(to_bytes(place.flat_offset, dtype).value % 64 == 0);
      CHECK(place.flat_offset.value % kTensorAlignment == 0);
      if (place.elements.value >= kLargeTensor) CHECK(place.flat_offset.value % kBlock == 0);
    }
    CHECK(layout.place(3).flat_offset == Elements(5120));  // 0, 64, 128..4223, then the next block
    CHECK(layout.place(4).flat_offset == Elements(5120 + 4096));
  }
}

TEST_CASE("layout: shards are whole norm blocks, and together they are the segment (B2)") {
  for (int shards = 1; shards <= 8; ++shards) {
    const FlatLayout layout(unit_of({10001, 3}), shards);
    const Segment& segment = layout.segments()[0];
    CHECK(segment.shards == shards);
    CHECK_FALSE(segment.replicated);
    CHECK(segment.per_shard.value % kBlock == 0);
    CHECK(segment.per_shard * shards == segment.full);
    for (int i = 0; i < shards; ++i) CHECK(layout.shard_begin(0, i) == segment.per_shard * i);
  }
}

TEST_CASE("layout: a segment whose padding would exceed its content is replicated, one whose padding equals it is not") {
  const FlatLayout equal(unit_of({4 * 512}), 4);
  CHECK_FALSE(equal.segments()[0].replicated);
  CHECK(equal.segments()[0].full == Elements(4096));
  CHECK(equal.segments()[0].per_shard == Elements(1024));

  const FlatLayout one_less(unit_of({4 * 512 - 1}), 4);
  CHECK(one_less.segments()[0].replicated);
  CHECK(one_less.segments()[0].shards == 1);
  CHECK(one_less.segments()[0].full == Elements(2048));  // whole blocks from 1,024 elements on
  CHECK(one_less.segments()[0].per_shard == Elements(2048));

  CHECK(FlatLayout(unit_of({1025}), 4).segments()[0].full == Elements(2048));

  const FlatLayout small(unit_of({65}), 4);
  CHECK(small.segments()[0].replicated);
  CHECK(small.segments()[0].full == Elements(128));  // multiples of 64 below that
  CHECK(FlatLayout(unit_of({1023}), 8).segments()[0].full == Elements(1024));
  CHECK(FlatLayout(unit_of({1}), 8).segments()[0].full == Elements(64));
}

TEST_CASE("layout: tensors of different dtypes, trainable and frozen, share a unit, each kind in a segment of its own (B5)") {
  UnitSpec unit;
  unit.name = "mixed";
  unit.tensors = {{"a", {3000}, DType::f32, Training::frozen},  {"b", {5}, DType::f32, Training::trainable},
                  {"c", {4096}, DType::bf16, Training::frozen}, {"d", {7000}, DType::f32, Training::trainable},
                  {"e", {1000}, DType::f32, Training::frozen},  {"f", {}, DType::i64, Training::frozen},
                  {"g", {0, 7}, DType::u8, Training::trainable}};
  const FlatLayout layout(unit, 3);
  REQUIRE(layout.segments().size() == 5);
  CHECK(layout.segments()[0].tensors == std::vector<int>{0, 4});
  CHECK(layout.segments()[1].tensors == std::vector<int>{1, 3});
  CHECK(layout.segments()[2].tensors == std::vector<int>{2});
  CHECK(layout.segments()[3].tensors == std::vector<int>{5});
  CHECK(layout.segments()[4].tensors == std::vector<int>{6});
  CHECK(layout.segments()[1].dtype == DType::f32);
  CHECK(layout.segments()[1].training == Training::trainable);
  CHECK(layout.segments()[2].dtype == DType::bf16);
  CHECK(layout.segments()[2].training == Training::frozen);
  CHECK(layout.place(4).segment == 0);
  CHECK(layout.place(4).flat_offset == Elements(3008));
  CHECK(layout.place(3).flat_offset == Elements(1024));
  CHECK(layout.place(5).elements == Elements(1));
  check_one_owner(unit);
}

TEST_CASE("layout: offsets of tensors depend on neither dtype nor number of shards") {
  const std::vector<std::int64_t> sizes = {1, 4096, 0, 77, 9000, 3};
  const FlatLayout first(unit_of(sizes), 1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8, DType::f64})
    for (const int shards : {1, 2, 3, 7, 64}) {
      const FlatLayout other(unit_of(sizes, dtype), shards);
      for (int t = 0; t < 6; ++t) CHECK(other.place(t).flat_offset == first.place(t).flat_offset);
      CHECK(other.segments()[0].content == first.segments()[0].content);
      CHECK(other.segments()[0].full == FlatLayout(unit_of(sizes), shards).segments()[0].full);
    }
}

TEST_CASE("layout: units of more than 2^31 and 2^40 elements lay out right (B7)") {
  UnitSpec unit;
  unit.name = "huge";
  const std::int64_t two31 = std::int64_t{1} << 31;
  const std::int64_t two40 = std::int64_t{1} << 40;
  unit.tensors = {{"a", {1 << 16, 1 << 15}, DType::f32, Training::trainable},  // 2^31
                  {"b", {5}, DType::f32, Training::trainable},
                  {"c", {1 << 20, 1 << 20}, DType::f32, Training::trainable},  // 2^40
                  {"d", {7}, DType::f32, Training::trainable}};
  const FlatLayout layout(unit, 3);
  const Segment& segment = layout.segments()[0];
  CHECK(layout.place(1).flat_offset == Elements(two31));
  CHECK(layout.place(2).flat_offset == Elements(two31 + 1024));
  CHECK(layout.place(3).flat_offset == Elements(two31 + 1024 + two40));
  CHECK(segment.content == Elements(two31 + 1024 + two40 + 7));
  CHECK(segment.full.value % (3 * kBlock) == 0);
  CHECK(segment.full - segment.content < Elements(3 * kBlock));
  CHECK(to_bytes(segment.full, DType::f32).value > 4 * two40);

  Elements covered{};
  for (int index = 0; index < 3; ++index)
    for (const TensorRange& r : layout.pieces(0, layout.shard_begin(0, index), segment.per_shard)) covered += r.elements;
  CHECK(covered == Elements(two31 + 5 + two40 + 7));
  const std::vector<TensorRange> last = layout.pieces(0, layout.shard_begin(0, 2), segment.per_shard);
  REQUIRE(last.size() == 2);
  CHECK(last[1].tensor == 3);
  CHECK(last[1].flat_offset == Elements(two31 + 1024 + two40));
  CHECK(last[0].tensor_offset == layout.shard_begin(0, 2) - layout.place(2).flat_offset);
  CHECK(last[0].elements == Elements(two40) - last[0].tensor_offset);
}

TEST_CASE("layout: pieces of a range name tensor, tensor offset and flat offset") {
  const FlatLayout layout(unit_of({100, 50, 0, 300}), 1);  // at 0, 128, (192), 192
  const std::vector<TensorRange> pieces = layout.pieces(0, Elements(90), Elements(130));
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].tensor == 0);
  CHECK(pieces[0].tensor_offset == Elements(90));
  CHECK(pieces[0].flat_offset == Elements(90));
  CHECK(pieces[0].elements == Elements(10));
  CHECK(pieces[1].tensor == 1);
  CHECK(pieces[1].tensor_offset == Elements(0));
  CHECK(pieces[1].flat_offset == Elements(128));
  CHECK(pieces[1].elements == Elements(50));
  CHECK(pieces[2].tensor == 3);
  CHECK(pieces[2].flat_offset == Elements(192));
  CHECK(pieces[2].elements == Elements(28));
  CHECK(layout.pieces(0, Elements(100), Elements(28)).empty());  // padding
  CHECK(layout.pieces(0, Elements(5), Elements(0)).empty());
}

TEST_CASE("layout: ranges, shards and world sizes that do not exist are refused") {
  const UnitSpec unit = unit_of({5000});
  CHECK_THROWS_AS(FlatLayout(unit, 0), UsageError);
  CHECK_THROWS_AS(FlatLayout(unit, -1), UsageError);
  const FlatLayout layout(unit, 2);
  const Elements full = layout.segments()[0].full;
  CHECK_THROWS_AS(layout.pieces(0, Elements(-1), Elements(1)), UsageError);
  CHECK_THROWS_AS(layout.pieces(0, Elements(0), Elements(-1)), UsageError);
  CHECK_THROWS_AS(layout.pieces(0, Elements(1), full), UsageError);
  CHECK_THROWS_AS(layout.pieces(0, Elements(INT64_MAX), Elements(INT64_MAX)), UsageError);
  CHECK_THROWS_AS(layout.shard_begin(0, 2), UsageError);
  CHECK_THROWS_AS(layout.shard_begin(0, -1), UsageError);
  UnitSpec too_large = unit_of({std::int64_t{1} << 58, 1});
  CHECK_THROWS_AS(FlatLayout(too_large, 1), UsageError);
}
