#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tessera/error.h"
#include "tessera/model_spec.h"

using namespace tessera;

namespace {

ModelSpec small() {
  ModelSpec spec;
  spec.unit("embed").tensor("wte", {7, 3}).tensor("wpe", {5, 3});
  spec.unit("h.0").tensor("h.0.w", {3, 3}).tensor("h.0.b", {3});
  spec.unit("h.1").tensor("h.1.w", {3, 3}).tensor("h.1.b", {3});
  return spec;
}

}  // namespace

TEST_CASE("model spec: units and tensors come back as declared, in order") {
  ModelSpec spec;
  const UnitId a = spec.unit("a").tensor("x", {2, 3}).tensor("y", {}, DType::bf16, Training::frozen);
  const UnitId b = spec.unit("b").tensor("x", {0, 9}).uses(3).optional();
  CHECK(a == UnitId(0));
  CHECK(b == UnitId(1));
  REQUIRE(spec.units().size() == 2);
  CHECK(spec[a].name == "a");
  REQUIRE(spec[a].tensors.size() == 2);
  CHECK(spec[a].tensors[0].elements() == Elements(6));
  CHECK(spec[a].tensors[1].elements() == Elements(1));  // a scalar
  CHECK(spec[a].tensors[1].dtype == DType::bf16);
  CHECK(spec[a].tensors[1].training == Training::frozen);
  CHECK(spec[a].uses == 1);
  CHECK_FALSE(spec[a].optional);
  CHECK(spec[b].tensors[0].elements() == Elements(0));
  CHECK(spec[b].uses == 3);
  CHECK(spec[b].optional);
  CHECK(spec.elements() == Elements(7));
  CHECK(spec.trainable_elements() == Elements(6));
}

TEST_CASE("model spec: doubled names are refused and leave the spec as it was") {
  ModelSpec spec = small();
  const std::uint64_t before = spec.fingerprint();
  CHECK_THROWS_WITH_AS(spec.unit("h.0"), "the model already has a unit 'h.0'", UsageError);
  CHECK(spec.fingerprint() == before);
  auto added = spec.unit("h.2").tensor("w", {4});
  CHECK_THROWS_WITH_AS(added.tensor("w", {5}), "unit 'h.2' already has a tensor 'w'", UsageError);
  CHECK(spec.units().back().tensors.size() == 1);
  CHECK_NOTHROW(spec.unit("h.3").tensor("w", {5}));  // unique within the unit only
}

TEST_CASE("model spec: negative dimensions and products beyond 2^58 are refused, whatever the order of the dimensions (B7)") {
  ModelSpec spec;
  const std::int64_t big = std::int64_t{1} << 32;
  auto unit = spec.unit("u");
  CHECK_THROWS_WITH_AS(unit.tensor("a", {3, -1}), "tensor 'a' has shape [3, -1]: negative dimension", UsageError);
  CHECK_THROWS_AS(unit.tensor("a", {0, -1}), UsageError);
  CHECK_THROWS_AS(unit.tensor("a", {big, big}), UsageError);
  CHECK_THROWS_AS(unit.tensor("a", {big, big, 0}), UsageError);
  CHECK_THROWS_AS(unit.tensor("a", {0, big, big}), UsageError);
  CHECK_THROWS_AS(unit.tensor("a", {std::numeric_limits<std::int64_t>::max(), 3}), UsageError);
  CHECK(spec.units()[0].tensors.empty());
  CHECK(spec.elements() == Elements(0));
}

TEST_CASE("model spec: a model of 2^57 elements is described; one element beyond 2^58 is refused (B7)") {
  ModelSpec spec;
  auto unit = spec.unit("u");
  unit.tensor("a", {1 << 19, 1 << 19, 1 << 19}).tensor("b", {1 << 19, 1 << 19, 1 << 19});
  CHECK(spec.elements() == Elements(std::int64_t{1} << 58));
  CHECK(spec.trainable_elements() == Elements(std::int64_t{1} << 58));
  CHECK_THROWS_AS(unit.tensor("c", {1}), UsageError);
  CHECK_NOTHROW(unit.tensor("c", {0}));
}

TEST_CASE("model spec: order sets the uses of units that did not declare theirs") {
  ModelSpec spec = small();
  const UnitId once = spec.unit("once").tensor("w", {1}).uses(1);
  spec.order({UnitId(0), UnitId(1), once, once, UnitId(0)});
  CHECK(spec[UnitId(0)].uses == 2);
  CHECK(spec[UnitId(1)].uses == 1);
  CHECK(spec[UnitId(2)].uses == 1);  // not in the order: used on demand
  CHECK(spec[once].uses == 1);       // declared
  CHECK(spec.order().size() == 5);
  spec.order({UnitId(0), UnitId(1)});
  CHECK(spec[UnitId(0)].uses == 1);
}

TEST_CASE("model spec: an order of units that do not exist is refused, and so are uses below 1") {
  ModelSpec spec = small();
  CHECK_THROWS_AS(spec.order({UnitId(3)}), UsageError);
  CHECK_THROWS_AS(spec.order({kNoUnit}), UsageError);
  CHECK(spec.order().empty());
  CHECK_THROWS_AS(spec.unit("u").uses(0), UsageError);
}

TEST_CASE("model spec: freeze takes tensors by the start of their names and counts them") {
  ModelSpec spec = small();
  CHECK(spec.freeze("h.1.") == 2);
  CHECK(spec.trainable_elements() == Elements(21 + 15 + 12));
  CHECK(spec.elements() == Elements(21 + 15 + 12 + 12));
  CHECK(spec.freeze("h.1.") == 2);
  CHECK(spec.freeze("nothing") == 0);
  CHECK(spec.freeze("embed") == 0);  // a unit's name is not a tensor's
  CHECK(spec.freeze("") == 6);
  CHECK(spec.trainable_elements() == Elements(0));
}

TEST_CASE("model spec: equal specs have equal fingerprints, and every single change shows") {
  CHECK(small().fingerprint() == small().fingerprint());
  using Change = std::function<void(ModelSpec&)>;
  const std::vector<Change> changes = {
      [](ModelSpec&) {},
      [](ModelSpec& s) { s.unit("more"); },
      [](ModelSpec& s) {
        s.unit("more").tensor("w", {2, 3});
      },
      [](ModelSpec& s) {
        s.unit("more").tensor("w", {3, 2});
      },
      [](ModelSpec& s) { s.unit("more").tensor("w", {6}); },
      [](ModelSpec& s) { s.unit("more").tensor("v", {6}); },
      [](ModelSpec& s) { s.unit("more").tensor("w", {6}, DType::bf16); },
      [](ModelSpec& s) { s.unit("more").tensor("w", {6}, DType::f32, Training::frozen); },
      [](ModelSpec& s) { s.unit("more").uses(2); },
      [](ModelSpec& s) { s.unit("more").optional(); },
      [](ModelSpec& s) { s.unit("mor").tensor("ew", {6}); },
      [](ModelSpec& s) { s.unit("more").tensor("x", {}).tensor("y0,0,0,z", {}); },  // the same characters in other names
      [](ModelSpec& s) { s.unit("more").tensor("x0,0,0,y", {}).tensor("z", {}); },
      [](ModelSpec& s) {
        s.order({UnitId(0), UnitId(1), UnitId(2)});
      },
      [](ModelSpec& s) {
        s.order({UnitId(0), UnitId(2), UnitId(1)});
      },
  };
  std::vector<std::uint64_t> seen;
  for (const Change& change : changes) {
    ModelSpec spec = small();
    change(spec);
    for (const std::uint64_t other : seen) CHECK(spec.fingerprint() != other);
    seen.push_back(spec.fingerprint());
  }
}
