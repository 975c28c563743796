#include "runtime/unit_state.h"

#include <doctest/doctest.h>

#include <set>
#include <utility>

using namespace tessera::runtime;

TEST_CASE("unit state: exactly the drawn transitions of parameters are legal, every other pair throws") {
  using S = ParameterState;
  using E = ParameterEvent;
  const std::set<std::pair<S, E>> drawn = {{S::sharded, E::gather}, {S::gathering, E::arrive}, {S::gathering, E::release},
                                           {S::gathered, E::lease}, {S::gathered, E::release}, {S::leased, E::close}};
  for (const S s : {S::sharded, S::gathering, S::gathered, S::leased})
    for (const E e : {E::gather, E::arrive, E::lease, E::close, E::release}) {
      CHECK(legal(s, e) == (drawn.count({s, e}) == 1));
      if (!legal(s, e)) CHECK_THROWS_AS((void)next(s, e), std::logic_error);
    }
  CHECK(next(S::sharded, E::gather) == S::gathering);
  CHECK(next(S::gathering, E::arrive) == S::gathered);
  CHECK(next(S::gathered, E::lease) == S::leased);
  CHECK(next(S::leased, E::close) == S::gathered);
  CHECK(next(S::gathered, E::release) == S::sharded);
  CHECK(next(S::gathering, E::release) == S::sharded);
}

TEST_CASE("unit state: exactly the drawn transitions of gradients are legal, every other pair throws") {
  using S = GradientState;
  using E = GradientEvent;
  const std::set<std::pair<S, E>> drawn = {
      {S::idle, E::open}, {S::open, E::reduce}, {S::open, E::drop}, {S::reducing, E::finish}, {S::reducing, E::drop}};
  for (const S s : {S::idle, S::open, S::reducing})
    for (const E e : {E::open, E::reduce, E::finish, E::drop}) {
      CHECK(legal(s, e) == (drawn.count({s, e}) == 1));
      if (!legal(s, e)) CHECK_THROWS_AS((void)next(s, e), std::logic_error);
    }
  CHECK(next(S::idle, E::open) == S::open);
  CHECK(next(S::open, E::reduce) == S::reducing);
  CHECK(next(S::reducing, E::finish) == S::idle);
}
