// From an element type known at run time to a C++ type known at compile time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tessera/error.h"
#include "tessera/half.h"
#include "tessera/types.h"

namespace tessera::core {

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type of `dtype`'s elements and returns its result.
template <class F>
decltype(auto) with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return std::forward<F>(f)(TypeTag<float>{});
    case DType::bf16: return std::forward<F>(f)(TypeTag<bf16>{});
    case DType::f16: return std::forward<F>(f)(TypeTag<f16>{});
    case DType::f64: return std::forward<F>(f)(TypeTag<double>{});
    case DType::i64: return std::forward<F>(f)(TypeTag<std::int64_t>{});
    case DType::u8: return std::forward<F>(f)(TypeTag<std::uint8_t>{});
  }
  throw UsageError("no element type has the number " + std::to_string(static_cast<int>(dtype)));
}

/// What sums of T are kept in: float for the 16-bit types, T itself for the others.
template <class T>
struct SumType {
  using type = T;
};
template <>
struct SumType<bf16> {
  using type = float;
};
template <>
struct SumType<f16> {
  using type = float;
};

}  // namespace tessera::core
