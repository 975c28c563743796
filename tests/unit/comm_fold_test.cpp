#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "comm/fold.h"
#include "tests/ranks/communicator_values.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::int64_t kSizes[] = {0, 1, 3, 7, 1023, 1024, 1025, 4097};
constexpr int kWorlds[] = {1, 2, 3, 4, 5, 7, 8, 9, 13};

template <class T>
std::vector<std::vector<T>> contributions_of(int ranks, std::int64_t n) {
  std::vector<std::vector<T>> out;
  for (int r = 0; r < ranks; ++r) out.push_back(values<T>(r, n));
  return out;
}

template <class T>
std::vector<const void*> pointers(const std::vector<std::vector<T>>& contributions) {
  std::vector<const void*> out;
  for (const auto& c : contributions) out.push_back(c.data());
  return out;
}

}  // namespace

TEST_CASE("fold: a sum has the bits of a plain loop for every type, world and size, from +0 and onward, in place too") {
  for (const DType dtype : kAllTypes)
    core::with_type(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using A = typename core::SumType<T>::type;
      for (const int ranks : kWorlds)
        for (const std::int64_t n : kSizes) {
          auto contributions = contributions_of<T>(ranks, n);
          std::vector<T> expected(static_cast<std::size_t>(n)), onward(expected), got(static_cast<std::size_t>(n), value<T>(50, 1));
          for (std::int64_t i = 0; i < n; ++i) {
            const auto k = static_cast<std::size_t>(i);
            expected[k] = static_cast<T>(sum_of<T>(ranks, i));
            onward[k] = static_cast<T>(sum_of<T>(ranks, i, static_cast<A>(expected[k])));
          }
          comm::fold_sum(pointers(contributions), dtype, got.data(), dtype, Elements(n), Fold::start);
          CHECK(same_bits(got, expected));
          comm::fold_sum(pointers(contributions), dtype, got.data(), dtype, Elements(n), Fold::onward);
          CHECK(same_bits(got, onward));
          auto& own = contributions[static_cast<std::size_t>(ranks / 2)];
          comm::fold_sum(pointers(contributions), dtype, own.data(), dtype, Elements(n), Fold::start);
          CHECK(same_bits(own, expected));
        }
    });
}

TEST_CASE("fold: 16-bit contributions keep every bit of their sum in fp32") {
  const std::vector<bf16> big(5, bf16(256.0f)), small(5, bf16(1.0f));
  const std::vector<const void*> contributions = {big.data(), small.data(), small.data()};
  std::vector<float> sum(5, -1.0f);
  comm::fold_sum(contributions, DType::bf16, sum.data(), DType::f32, Elements(5), Fold::start);
  for (const float x : sum) CHECK(x == 258.0f);
  comm::fold_sum(contributions, DType::bf16, sum.data(), DType::f32, Elements(5), Fold::onward);
  for (const float x : sum) CHECK(x == 516.0f);
  // Rounded once at the end: 257 is no bf16, 258 is.
  std::vector<bf16> rounded(5);
  comm::fold_sum(contributions, DType::bf16, rounded.data(), DType::bf16, Elements(5), Fold::start);
  for (const bf16 x : rounded) CHECK(static_cast<float>(x) == 258.0f);
  CHECK_THROWS_AS(comm::fold_sum(contributions, DType::f32, rounded.data(), DType::bf16, Elements(1), Fold::start), UsageError);
}

TEST_CASE("fold: every f16 pattern is added with the value of its own conversion") {
  std::vector<f16> all(65536);
  for (std::size_t p = 0; p < all.size(); ++p) all[p].bits = static_cast<std::uint16_t>(p);
  const std::vector<const void*> contributions = {all.data()};
  std::vector<float> sum(all.size());
  comm::fold_sum(contributions, DType::f16, sum.data(), DType::f32, Elements(65536), Fold::start);
  int wrong = 0;
  for (std::size_t p = 0; p < all.size(); ++p) {
    const float expected = 0.0f + static_cast<float>(all[p]);
    wrong += std::isnan(expected) ? (std::isnan(sum[p]) ? 0 : 1)
                                  : (std::bit_cast<std::uint32_t>(expected) == std::bit_cast<std::uint32_t>(sum[p]) ? 0 : 1);
  }
  CHECK(wrong == 0);
}

TEST_CASE("fold: starts from +0, so that a lone -0 becomes +0") {
  const std::vector<double> zero(3, -0.0);
  const std::vector<const void*> contributions = {zero.data()};
  std::vector<double> sum(3, 1.0);
  comm::fold_sum(contributions, DType::f64, sum.data(), DType::f64, Elements(3), Fold::start);
  for (const double x : sum) CHECK((x == 0 && !std::signbit(x)));
}

TEST_CASE("fold: integers wrap") {
  const std::vector<std::int64_t> a(3, INT64_MAX), b(3, 2);
  std::vector<std::int64_t> sum(3);
  const std::vector<const void*> contributions = {a.data(), b.data()};
  comm::fold_sum(contributions, DType::i64, sum.data(), DType::i64, Elements(3), Fold::start);
  for (const std::int64_t x : sum) CHECK(x == INT64_MIN + 1);
}

TEST_CASE("fold: NaN wins a maximum and a minimum from any rank, infinities are ordinary") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> a = {nan, 1, 1, -inf}, b = {1, nan, 2, inf}, c = {2, 2, nan, 0};
  const std::vector<const void*> contributions = {a.data(), b.data(), c.data()};
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    std::vector<float> out(4);
    comm::fold_extreme(contributions, DType::f32, out.data(), Elements(4), op);
    CHECK(std::isnan(out[0]));
    CHECK(std::isnan(out[1]));
    CHECK(std::isnan(out[2]));
    CHECK(out[3] == (op == ReduceOp::max ? inf : -inf));
  }
}
