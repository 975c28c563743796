#include "comm/fold.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/planted_fault.h"
#include "tessera/error.h"

#if defined(__clang__)
#define TESSERA_NO_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define TESSERA_NO_DEPENDENCE _Pragma("GCC ivdep")
#endif

// The loops are compiled for each instruction set. Each element's sum is its own, so that the bits are the same.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/fold.cpp"
#include "core/each_isa.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::comm {
namespace HWY_NAMESPACE {
namespace {

// Extrema of so many elements stay in the first-level cache while the contributions stream past.
constexpr std::int64_t kBlock = 1024;
// So many contributions are added in one pass over memory; more take another.
constexpr std::size_t kAtOnce = 8;

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

// The destination may be one of the contributions: no element is read after it was written, which the pragma promises.
template <class From, class To, Fold fold, std::size_t... kRanks>
void add_pass(const std::array<const From*, kAtOnce>& from, To* to, std::int64_t n, std::index_sequence<kRanks...>) {
  const From* const parts[] = {from[kRanks]...};
  TESSERA_NO_DEPENDENCE
  for (std::int64_t i = 0; i < n; ++i) {
    Sum<From> sum{};
    if constexpr (fold == Fold::onward) sum = static_cast<Sum<From>>(widen(to[i]));
    ((sum = add(sum, widen(parts[kRanks][i]))), ...);
    to[i] = static_cast<To>(sum);
  }
}

template <class From, class To, Fold fold>
void add_pass(const std::array<const From*, kAtOnce>& from, std::size_t ranks, To* to, std::int64_t n) {
  static_assert(kAtOnce == 8);
  switch (ranks) {
    case 1: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<1>{});
    case 2: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<2>{});
    case 3: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<3>{});
    case 4: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<4>{});
    case 5: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<5>{});
    case 6: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<6>{});
    case 7: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<7>{});
    case 8: return add_pass<From, To, fold>(from, to, n, std::make_index_sequence<8>{});
    default: return;
  }
}

template <class From, class To>
void add_some(std::span<const void* const> contributions, To* to, std::int64_t at, std::int64_t n, Fold fold) {
  std::array<const From*, kAtOnce> from{};
  for (std::size_t r = 0; r < contributions.size(); ++r) from[r] = static_cast<const From*>(contributions[r]) + at;
  if (fold == Fold::onward) add_pass<From, To, Fold::onward>(from, contributions.size(), to, n);
  else add_pass<From, To, Fold::start>(from, contributions.size(), to, n);
}

template <class From, class To>
void sum_all(std::span<const void* const> contributions, To* destination, std::int64_t elements, Fold fold) {
  if (contributions.size() <= kAtOnce) {
    add_some<From, To>(contributions, destination, 0, elements, fold);
    return;
  }
  // The running sum of a block stays in the first-level cache, in the type that sums are kept in.
  alignas(64) std::array<Sum<From>, kBlock> sum;
  for (std::int64_t at = 0; at < elements; at += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - at);
    To* to = destination + at;
    for (std::int64_t i = 0; i < n; ++i)
      sum[static_cast<std::size_t>(i)] = fold == Fold::onward ? static_cast<Sum<From>>(widen(to[i])) : Sum<From>{};
    for (std::size_t r = 0; r < contributions.size(); r += kAtOnce)
      add_some<From, Sum<From>>(contributions.subspan(r, std::min(kAtOnce, contributions.size() - r)), sum.data(), at, n, Fold::onward);
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
  std::vector<const void*> reversed;
  if (core::planted(core::Fault::reversed_ranks)) {
    reversed.assign(contributions.rbegin(), contributions.rend());
    contributions = reversed;
  }
  if (core::planted(core::Fault::fold_from_copy) && fold == Fold::start && from == to) {
    std::memmove(destination, contributions[0], static_cast<std::size_t>(to_bytes(elements, to).value));
    if (contributions.size() == 1) return;
    contributions = contributions.subspan(1);
    fold = Fold::onward;
  }
  TESSERA_FOR_ISA(sum_ranks)(contributions, from, destination, to, elements, fold);
}

void fold_extreme(std::span<const void* const> contributions, DType dtype, void* destination, Elements elements, ReduceOp op) {
  TESSERA_FOR_ISA(extreme_of_ranks)(contributions, dtype, destination, elements, op);
}

}  // namespace tessera::comm
#endif
