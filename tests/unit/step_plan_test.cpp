#include "runtime/step_plan.h"

#include <doctest/doctest.h>

using namespace tessera;
using namespace tessera::runtime;

namespace {

ModelSpec blocks(int n) {
  ModelSpec spec;
  for (int i = 0; i < n; ++i) spec.unit(std::string(1, static_cast<char>('a' + i)));
  return spec;
}
std::vector<UnitId> ids(std::initializer_list<int> v) {
  std::vector<UnitId> units;
  for (const int i : v) units.push_back(UnitId(i));
  return units;
}
PlanLimits limits(int n, int slots, int prefetch) {
  return {.slots = slots,
          .prefetch = prefetch,
          .gathers = std::vector<bool>(static_cast<std::size_t>(n), true),
          .own_slot = std::vector<bool>(static_cast<std::size_t>(n), false)};
}

}  // namespace

TEST_CASE("plan: with two slots each unit is gathered while the one before it is in use, and the last stays from forward to backward") {
  const StepPlan plan = build_plan(expected_events(ids({0, 1, 2})), limits(3, 2, 1));
  CHECK(plan.text(blocks(3)) ==
        "gather a\nopen a\ngather b\nclose a\nopen b\nrelease a\ngather c\nclose b\nopen c\nclose c\nopen c\nclose c\nrelease c\n"
        "open b\ngather a\nclose b\nrelease b\nopen a\nclose a\nrelease a\n");
}

TEST_CASE("plan: with one slot nothing is gathered ahead of a live lease, and what is needed again at once is kept") {
  const StepPlan plan = build_plan(expected_events(ids({0, 1})), limits(2, 1, 1));
  CHECK(plan.text(blocks(2)) ==
        "gather a\nopen a\nclose a\nrelease a\ngather b\nopen b\nclose b\nopen b\nclose b\nrelease b\ngather a\nopen a\nclose a\nrelease "
        "a\n");
}

TEST_CASE("plan: without prefetch no gather is planned, only what to give up") {
  const StepPlan plan = build_plan(expected_events(ids({0, 1})), limits(2, 1, 0));
  CHECK(plan.text(blocks(2)) == "open a\nclose a\nrelease a\nopen b\nclose b\nopen b\nclose b\nrelease b\nopen a\nclose a\nrelease a\n");
}

TEST_CASE("plan: a unit with a slot of its own is gathered once and stays from first to last use") {
  PlanLimits l = limits(3, 2, 1);
  l.own_slot[0] = true;
  const StepPlan plan = build_plan(expected_events(ids({0, 1, 2, 0})), l);
  int gathers = 0, releases = 0;
  for (const PlanStep& s : plan.steps) {
    if (s.unit != UnitId(0)) continue;
    gathers += s.kind == PlanStep::Kind::gather ? 1 : 0;
    releases += s.kind == PlanStep::Kind::release ? 1 : 0;
  }
  CHECK(gathers == 1);
  CHECK(releases == 1);
  CHECK(plan.steps.back() == PlanStep{PlanStep::Kind::release, UnitId(0)});
}

TEST_CASE("plan: units that are whole on every rank are in no plan") {
  PlanLimits l = limits(2, 2, 1);
  l.gathers[1] = false;
  for (const PlanStep& s : build_plan(expected_events(ids({0, 1, 0})), l).steps) CHECK(s.unit == UnitId(0));
}
