// Every instruction set that this machine has gives the same bits.
#include "core/isa.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "comm/fold.h"
#include "core/dtype.h"
#include "shard/norm.h"
#include "shard/optimizer.h"

using namespace tessera;
using core::Isa;

namespace {

constexpr std::int64_t kSizes[] = {0, 1, 2, 15, 16, 17, 1023, 1024, 4097};

/// Magnitudes from subnormal to large, both signs.
std::vector<float> numbers(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) {
    const auto mantissa = static_cast<float>(random() % 16'777'213) / 16'777'216.0f - 0.5f;
    x = std::ldexp(mantissa, static_cast<int>(random() % 40) - (random() % 50 == 0 ? 140 : 20));
  }
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Calls run() under every instruction set and checks that each returns what the baseline does.
template <class Run>
void same_everywhere(const Run& run) {
  const core::ForcedIsa baseline(Isa::baseline);
  const auto expected = run();
  for (const Isa isa : core::available_isas()) {
    CAPTURE(core::name_of(isa));
    const core::ForcedIsa forced(isa);
    CHECK(same_bits(run(), expected));
  }
}

TEST_CASE("every optimizer updates the same bits with every instruction set, at odd sizes and offsets") {
  const Optimizer optimizers[] = {AdamW{},
                                  AdamW{.amsgrad = true},
                                  Adam{.weight_decay = 0.1f},
                                  Adam{.amsgrad = true},
                                  Sgd{},
                                  Sgd{.momentum = 0.9f, .weight_decay = 0.1f},
                                  Sgd{.momentum = 0.9f, .nesterov = true},
                                  Adagrad{.weight_decay = 0.1f},
                                  Lion{}};
  for (const Optimizer& optimizer : optimizers)
    for (const std::int64_t n : kSizes)
      for (const std::int64_t shift : {0, 3}) {
        CAPTURE(name_of(optimizer));
        CAPTURE(n);
        same_everywhere([&] {
          std::vector<float> all;
          std::vector<float> p = numbers(n + shift, 1), m0(p.size()), m1(p.size()), m2(p.size());
          for (int step = 1; step <= 3; ++step) {
            const std::vector<float> g = numbers(n + shift, static_cast<unsigned>(10 + step));
            shard::update(optimizer, {.learning_rate = 0.01f, .step = step, .gradient_scale = 0.3f, .clip_factor = 0.7f},
                          {p.data() + shift, g.data() + shift, {m0.data() + shift, m1.data() + shift, m2.data() + shift}, Elements(n)});
          }
          for (const auto* part : {&p, &m0, &m1, &m2}) all.insert(all.end(), part->begin(), part->end());
          return all;
        });
      }
}

TEST_CASE("the norm has the same bits with every instruction set, non-finite gradients included") {
  for (const std::int64_t n : kSizes)
    for (const bool finite : {true, false}) {
      std::vector<float> g = numbers(n, 5);
      if (!finite && n > 16) g[16] = std::numeric_limits<float>::quiet_NaN(), g[3] = std::numeric_limits<float>::infinity();
      CAPTURE(n);
      same_everywhere([&] {
        std::vector<std::int64_t> all;
        for (const int p : {1, 2}) {
          shard::ExactSum sum;
          shard::add_norm(sum, g.data(), Elements(n), 0.37f, p);
          all.insert(all.end(), sum.limbs.begin(), sum.limbs.end());
          all.push_back(sum.non_finite);
        }
        std::int64_t bad = 0;
        const float largest = shard::max_norm(g.data(), Elements(n), 0.37f, bad);
        std::int32_t bits = 0;
        std::memcpy(&bits, &largest, sizeof bits);
        all.insert(all.end(), {bits, bad});
        return all;
      });
    }
}

TEST_CASE("a fold over ranks has the same bits with every instruction set, in every element type") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::int64_t n : kSizes)
      for (const int ranks : {1, 3, 4, 6}) {
        CAPTURE(name_of(dtype));
        CAPTURE(n);
        CAPTURE(ranks);
        core::with_type(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          std::vector<std::vector<T>> contributions;
          std::vector<const void*> pointers;
          for (int r = 0; r < ranks; ++r) {
            auto& mine = contributions.emplace_back();
            for (const float x : numbers(n, static_cast<unsigned>(r)))
              mine.push_back(static_cast<T>(static_cast<typename core::SumType<T>::type>(x)));
          }
          for (const auto& c : contributions) pointers.push_back(c.data());
          same_everywhere([&] {
            std::vector<T> out(static_cast<std::size_t>(3 * n), static_cast<T>(typename core::SumType<T>::type(1)));
            comm::fold_sum(pointers, dtype, out.data(), dtype, Elements(n), Fold::onward);
            comm::fold_sum(pointers, dtype, out.data() + n, dtype, Elements(n), Fold::start);
            comm::fold_extreme(pointers, dtype, out.data() + 2 * n, Elements(n), ReduceOp::max);
            return out;
          });
        });
      }
}

}  // namespace
