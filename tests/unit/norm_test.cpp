#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "shard/flat_layout.h"
#include "shard/norm.h"
#include "tessera/error.h"

using namespace tessera;
using namespace tessera::shard;

namespace {

/// A sum as single bits from 2^-298 up, added with a carry a bit at a time: slow and plain.
class BitSum {
 public:
  void add(double value) {
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);
    auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
    for (int place = exponent - 53; mantissa != 0; ++place, mantissa >>= 1)
      if ((mantissa & 1u) != 0) add_bit(place + 298);
  }

  double value() const {
    int top = kBits - 1;
    while (top >= 0 && !bits_[static_cast<std::size_t>(top)]) --top;
    std::uint64_t mantissa = 0;
    for (int i = 0; i < 53; ++i) mantissa = 2 * mantissa + (bit(top - i) ? 1 : 0);
    bool below = false;
    for (int i = top - 54; i >= 0; --i) below = below || bit(i);
    if (bit(top - 53) && (below || mantissa % 2 == 1)) ++mantissa;
    return std::ldexp(static_cast<double>(mantissa), top - 52 - 298);
  }

 private:
  static constexpr int kBits = 700;
  bool bit(int i) const { return i >= 0 && bits_[static_cast<std::size_t>(i)]; }
  void add_bit(int i) {
    while (bits_[static_cast<std::size_t>(i)]) bits_[static_cast<std::size_t>(i++)] = false;
    bits_[static_cast<std::size_t>(i)] = true;
  }
  std::array<bool, kBits> bits_{};
};

/// Values over the whole range of an exact sum, each a multiple of 2^-298.
std::vector<double> random_values(int count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_int_distribution<int> place(-298, 252);
  std::uniform_int_distribution<int> width(1, 53);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(std::ldexp(static_cast<double>(engine() >> (64 - width(engine))), place(engine)));
  return values;
}

std::vector<float> random_gradients(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<float> g;
  for (std::int64_t i = 0; i < count; ++i)  // no distribution of the standard library: its bits are not the same everywhere
    g.push_back(static_cast<float>(static_cast<std::int64_t>(engine() >> 40) - (1 << 23)) * 0x1p-20f);
  return g;
}

ExactSum norm_of(const std::vector<float>& g, float scale = 1.0f, int p = 2) {
  ExactSum sum;
  add_norm(sum, g.data(), Elements(static_cast<std::int64_t>(g.size())), scale, p);
  return sum;
}

/// One block as documented: element i to lane i % 16, then halves.
double block(const float* g, std::size_t count, float scale, int p) {
  double lanes[16] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const double y = g[i] * scale;
    lanes[i % 16] += p == 2 ? y * y : std::fabs(y);
  }
  for (std::size_t width : {8u, 4u, 2u, 1u})
    for (std::size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("exact sum: equals a sum of single bits, rounded to nearest even, over the whole range") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    ExactSum sum;
    BitSum bits;
    for (const double v : random_values(1 + static_cast<int>(seed) % 40, seed)) {
      sum.add(v);
      bits.add(v);
    }
    CHECK(sum.value() == bits.value());
  }
}

TEST_CASE("exact sum: one value comes back as it was, the smallest and the largest included") {
  for (const double v : {0.0, 0x1p-298, 0x3p-298, 0x1.fffffffffffffp305, 1.0, 0x1.23456789abcdep-200, 0x1p-32, 0x1p32, 0x1.8p-33}) {
    ExactSum sum;
    sum.add(v);
    CHECK(sum.value() == v);
  }
}

TEST_CASE("exact sum: ties go to even, and anything below a tie breaks it upwards") {
  const auto rounded = [](std::initializer_list<double> values) {
    ExactSum sum;
    for (const double v : values) sum.add(v);
    return sum.value();
  };
  CHECK(rounded({1.0, 0x1p-53}) == 1.0);
  CHECK(rounded({1.0, 0x1p-53, 0x1p-298}) == 1.0 + 0x1p-52);
  CHECK(rounded({1.0, 0x1p-53, 0x1p-64}) == 1.0 + 0x1p-52);  // just below the window
  CHECK(rounded({1.0 + 0x1p-52, 0x1p-53}) == 1.0 + 0x1p-51);
  CHECK(rounded({0x1.fffffffffffffp0, 0x1p-53}) == 2.0);  // the rounding carries into a new leading bit
  for (int e = -200; e < 200; ++e) CHECK(rounded({std::ldexp(1.0, e), std::ldexp(1.0, e - 53), 0x1p-298}) > std::ldexp(1.0, e));
}

TEST_CASE("exact sum: the bits do not depend on order or grouping (B20)") {
  std::vector<double> values = random_values(500, 7);
  ExactSum whole;
  for (const double v : values) whole.add(v);
  std::mt19937_64 engine(8);
  for (const std::size_t groups : {1u, 2u, 3u, 8u, 128u}) {
    std::shuffle(values.begin(), values.end(), engine);
    std::vector<ExactSum> parts(groups);
    for (std::size_t i = 0; i < values.size(); ++i) parts[i % groups].add(values[i]);
    ExactSum sum;
    for (ExactSum& part : parts) {
      part.normalize();
      for (std::size_t i = 0; i < sum.limbs.size(); ++i) sum.limbs[i] += part.limbs[i];  // what an integer all_reduce does
    }
    sum.normalize();
    CHECK(sum.limbs == whole.limbs);
    CHECK(sum.value() == whole.value());
  }
}

TEST_CASE("exact sum: 2^30 accumulators add up without overflow, and adding goes on afterwards") {
  ExactSum sum;
  for (int i = 0; i < 100; ++i) sum.add(0x1.fffffffffffffp265);
  for (const double v : random_values(200, 9)) sum.add(std::min(v, 0x1p266));
  const double before = sum.value();
  for (std::int64_t& limb : sum.limbs) limb *= std::int64_t{1} << 30;
  CHECK(sum.value() == std::ldexp(before, 30));
  sum.add(0x1p-298);
  sum.normalize();
  for (const std::int64_t limb : sum.limbs) {
    CHECK(limb >= 0);
    CHECK(limb < std::int64_t{1} << 32);
  }
  CHECK(sum.value() == std::ldexp(before, 30));
}

TEST_CASE("exact sum: what it cannot hold exactly is refused") {
  ExactSum sum;
  for (const double v : {-1.0, 0x1p306, 0x1p-299, 0x1.8p-298, 0x1p-1074, std::nan(""), double{kInfinity}})
    CHECK_THROWS_AS(sum.add(v), UsageError);
  CHECK(sum.value() == 0.0);
  CHECK_NOTHROW(sum.add(-0.0));
}

TEST_CASE("exact sum: travels as int64") {
  static_assert(std::is_trivially_copyable_v<ExactSum>);
  static_assert(sizeof(ExactSum) == (ExactSum::kLimbs + 1) * sizeof(std::int64_t));
}

TEST_CASE("norm: one block is 16 lanes of doubles and a fixed tree, for every length (B20)") {
  for (const int p : {1, 2})
    for (const std::int64_t count : {0, 1, 2, 15, 16, 17, 31, 33, 1007, 1023, 1024}) {
      CAPTURE(count);
      const std::vector<float> g = random_gradients(count, 11);
      CHECK(norm_of(g, 0.3f, p).value() == block(g.data(), g.size(), 0.3f, p));
    }
}

TEST_CASE("norm: several blocks add exactly (B20)") {
  const std::vector<float> g = random_gradients(5 * kBlock + 77, 12);
  BitSum bits;
  for (std::size_t i = 0; i < g.size(); i += kBlock) bits.add(block(g.data() + i, std::min<std::size_t>(kBlock, g.size() - i), 1.0f, 2));
  CHECK(norm_of(g).value() == bits.value());
}

TEST_CASE("norm: these bits are the same from every compiler, at every optimisation and on every processor (B20)") {
  const std::vector<float> g = random_gradients(3 * kBlock + 5, 13);
  CHECK(norm_of(g, 0.7f, 2).value() == 0x1.fad71a0def666p+14);
  CHECK(norm_of(g, 0.7f, 1).value() == 0x1.0f2dc6208b3p+13);
}

TEST_CASE("norm: ranges cut at blocks add up to the same bits, in any order, with or without zero padding (B20)") {
  std::vector<float> g = random_gradients(7 * kBlock + 3, 14);
  const ExactSum whole = norm_of(g);
  ExactSum backwards;
  for (std::int64_t i = 7; i >= 0; --i)
    add_norm(backwards, g.data() + i * kBlock, Elements(std::min(kBlock, static_cast<std::int64_t>(g.size()) - i * kBlock)), 1.0f, 2);
  CHECK(backwards.limbs == whole.limbs);
  g.resize(9 * kBlock, 0.0f);
  CHECK(norm_of(g).limbs == whole.limbs);
}

TEST_CASE("norm: the alignment of the gradients does not show in the bits") {
  const std::vector<float> g = random_gradients(2 * kBlock + 9, 15);
  const ExactSum expected = norm_of(g);
  for (std::size_t shift = 1; shift < 8; ++shift) {
    std::vector<float> moved(g.size() + shift);
    std::copy(g.begin(), g.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    ExactSum sum;
    add_norm(sum, moved.data() + shift, Elements(static_cast<std::int64_t>(g.size())), 1.0f, 2);
    CHECK(sum.limbs == expected.limbs);
  }
}

TEST_CASE("norm: subnormal gradients and gradients of 1e38 neither vanish nor overflow") {
  const float smallest = std::numeric_limits<float>::denorm_min();
  CHECK(norm_of(std::vector<float>(1000, smallest)).value() == 1000 * 0x1p-298);
  CHECK(norm_of(std::vector<float>(1000, smallest), 1.0f, 1).value() == 1000 * 0x1p-149);
  const double large = 1e38f;
  CHECK(norm_of(std::vector<float>(4096, 1e38f)).value() == 4096 * (large * large));
  const double most = std::numeric_limits<float>::max();
  CHECK(norm_of(std::vector<float>(16, -std::numeric_limits<float>::max())).value() == 16 * (most * most));
  std::vector<float> both(kBlock, smallest);
  both.resize(2 * kBlock, 1e38f);
  ExactSum sum = norm_of(both);
  CHECK(sum.value() == 1024 * (large * large));
  CHECK((sum.limbs[0] & 0xffffffff) == 1024);  // the small ones are there, to the last bit
}

TEST_CASE("norm: is taken of the gradient times the scale, rounded to fp32 first") {
  const float g = 1.0f + 0x1p-23f;
  const float scale = 1.0f + 0x1p-22f;
  const double y = static_cast<double>(g * scale);
  REQUIRE(y != static_cast<double>(g) * static_cast<double>(scale));
  CHECK(norm_of({g}, scale).value() == y * y);
  CHECK(norm_of({-g}, scale, 1).value() == y);
}

TEST_CASE("norm: elements that are NaN or infinite are counted, their blocks add nothing, the others do (B21)") {
  std::vector<float> g(3 * kBlock, 1.0f);
  g[kBlock + 3] = kNaN;
  g[kBlock + 700] = kInfinity;
  g[kBlock + 701] = -kInfinity;
  for (const int p : {1, 2}) {
    const ExactSum sum = norm_of(g, 1.0f, p);
    CHECK(sum.non_finite == 3);
    CHECK(sum.value() == 2.0 * kBlock);
  }
  g.assign(5, 2.0f);
  g[4] = kNaN;  // in the tail of a short block
  CHECK(norm_of(g).non_finite == 1);
  CHECK(norm_of(g).value() == 0.0);
}

TEST_CASE("norm: an element that only the scale makes infinite counts as infinite (B21)") {
  CHECK(norm_of({1e38f, 1.0f}, 10.0f).non_finite == 1);
  CHECK(norm_of({1e38f, 1.0f}, 1.0f).non_finite == 0);
}

TEST_CASE("norm: powers other than 1 and 2 are refused") {
  ExactSum sum;
  const float g = 1.0f;
  CHECK_THROWS_AS(add_norm(sum, &g, Elements(1), 1.0f, 0), UsageError);
  CHECK_THROWS_AS(add_norm(sum, &g, Elements(1), 1.0f, 3), UsageError);
}

TEST_CASE("norm: the largest magnitude of any range, scaled, with what is not finite counted and left out (B20, B21)") {
  for (const std::int64_t count : {1, 2, 3, 5, 15, 16, 17, 1023, 1024, 1025, 5000})
    for (const std::int64_t where : {std::int64_t{0}, count / 2, count - 1}) {
      CAPTURE(count);
      std::vector<float> g = random_gradients(count, 16);
      g[static_cast<std::size_t>(where)] = -77.5f;
      std::int64_t non_finite = 0;
      CHECK(max_norm(g.data(), Elements(count), 0.5f, non_finite) == 38.75f);
      CHECK(non_finite == 0);
    }
  std::vector<float> g = {1.0f, kNaN, -3.0f, kInfinity, -kInfinity, std::numeric_limits<float>::denorm_min()};
  std::int64_t non_finite = 2;
  CHECK(max_norm(g.data(), Elements(6), 1.0f, non_finite) == 3.0f);
  CHECK(non_finite == 5);
  CHECK(max_norm(g.data(), Elements(0), 1.0f, non_finite) == 0.0f);
  CHECK(max_norm(g.data() + 5, Elements(1), 1.0f, non_finite) == std::numeric_limits<float>::denorm_min());
  CHECK(max_norm(g.data() + 1, Elements(1), 1.0f, non_finite) == 0.0f);
  CHECK(non_finite == 6);
}
