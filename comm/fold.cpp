#include "comm/fold.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/dtype.h"
#include "core/planted_fault.h"
#include "tessera/error.h"

// The loops are compiled for each instruction set. Each element's sum is its own, so that the bits are the same.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/fold.cpp"
#include "core/each_isa.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::comm {
namespace HWY_NAMESPACE {
namespace {

// Sums of so many elements stay in the first-level cache while the contributions stream past, four at a time.
constexpr std::int64_t kBlock = 1024;

template <class T>
using Sum = typename core::SumType<T>::type;

template <class T>
inline Sum<T> widen(T x) {
  return static_cast<Sum<T>>(x);
}

template <class A>
inline A add(A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
  else return a + b;
}

template <class T>
void add_four(Sum<T>* __restrict sum, const T* a, const T* b, const T* c, const T* d, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = add(add(add(add(sum[i], widen(a[i])), widen(b[i])), widen(c[i])), widen(d[i]));
}

template <class T>
void add_one(Sum<T>* __restrict sum, const T* a, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = add(sum[i], widen(a[i]));
}

template <class From, class To>
void sum_all(std::span<const void* const> contributions, To* destination, std::int64_t elements, Fold fold) {
  alignas(64) std::array<Sum<From>, kBlock> sum;
  const auto ranks = contributions.size();
  const auto from = [&](std::size_t r, std::int64_t at) {
    return static_cast<const From*>(contributions[core::planted(core::Fault::reversed_ranks) ? ranks - 1 - r : r]) + at;
  };
  for (std::int64_t at = 0; at < elements; at += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - at);
    To* to = destination + at;
    std::size_t r = 0;
    if (fold == Fold::onward) {
      for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] = static_cast<Sum<From>>(widen(to[i]));
    } else if (core::planted(core::Fault::fold_from_copy)) {
      const From* first = from(r++, at);
      for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] = widen(first[i]);
    } else {
      std::fill_n(sum.data(), n, Sum<From>{});
    }
    for (; r + 4 <= ranks; r += 4) add_four<From>(sum.data(), from(r, at), from(r + 1, at), from(r + 2, at), from(r + 3, at), n);
    for (; r < ranks; ++r) add_one<From>(sum.data(), from(r, at), n);
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(sum[static_cast<std::size_t>(i)]);
  }
}

template <class T, class Better>
void extreme_all(std::span<const void* const> contributions, T* destination, std::int64_t elements, Better better) {
  alignas(64) std::array<Sum<T>, kBlock> best;
  for (std::int64_t at = 0; at < elements; at += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - at);
    const T* first = static_cast<const T*>(contributions[0]) + at;
    for (std::int64_t i = 0; i < n; ++i) best[static_cast<std::size_t>(i)] = widen(first[i]);
    for (std::size_t r = 1; r < contributions.size(); ++r) {
      const T* next = static_cast<const T*>(contributions[r]) + at;
      for (std::int64_t i = 0; i < n; ++i) {
        Sum<T>& b = best[static_cast<std::size_t>(i)];
        const Sum<T> x = widen(next[i]);
        const bool wins = b == b && (better(x, b) || x != x);
        b = wins ? x : b;
      }
    }
    for (std::int64_t i = 0; i < n; ++i) destination[at + i] = static_cast<T>(best[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

void sum_ranks(std::span<const void* const> contributions, DType from, void* destination, DType to, Elements elements, Fold fold) {
  core::with_type(from, [&](auto tag) {
    using From = typename decltype(tag)::type;
    if (from == to) {
      sum_all<From, From>(contributions, static_cast<From*>(destination), elements.value, fold);
      return;
    }
    if constexpr (std::is_same_v<From, bf16> || std::is_same_v<From, f16>) {
      if (to == DType::f32) {
        sum_all<From, float>(contributions, static_cast<float*>(destination), elements.value, fold);
        return;
      }
    }
    throw UsageError("a sum of " + std::string(name_of(from)) + " cannot be kept in " + std::string(name_of(to)));
  });
}

void extreme_of_ranks(std::span<const void* const> contributions, DType dtype, void* destination, Elements elements, ReduceOp op) {
  core::with_type(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* to = static_cast<T*>(destination);
    if (op == ReduceOp::max) extreme_all<T>(contributions, to, elements.value, [](auto a, auto b) { return a > b; });
    else extreme_all<T>(contributions, to, elements.value, [](auto a, auto b) { return a < b; });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::comm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::comm {

void fold_sum(std::span<const void* const> contributions, DType from, void* destination, DType to, Elements elements, Fold fold) {
  TESSERA_FOR_ISA(sum_ranks)(contributions, from, destination, to, elements, fold);
}

void fold_extreme(std::span<const void* const> contributions, DType dtype, void* destination, Elements elements, ReduceOp op) {
  TESSERA_FOR_ISA(extreme_of_ranks)(contributions, dtype, destination, elements, op);
}

}  // namespace tessera::comm
#endif
