// Counts, identifiers and element types.
//
// A count says what it counts: Elements and Bytes do not mix, and the only way from one to the other is to_bytes(n, dtype).
// Rank and UnitId are identifiers: they compare, they do not add.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// Visible outside a shared library that links Tessera: the public classes, so that they can be thrown across it, derived from and deleted
/// there. Everything else stays hidden.
#define TESSERA_API [[gnu::visibility("default")]]

namespace tessera {

namespace detail {
/// A 64-bit count that only meets its own kind.
template <class Tag>
struct Count {
  std::int64_t value = 0;

  constexpr Count() = default;
  constexpr explicit Count(std::int64_t v) : value(v) {}

  constexpr Count& operator+=(Count o) {
    value += o.value;
    return *this;
  }
  constexpr Count& operator-=(Count o) {
    value -= o.value;
    return *this;
  }
  friend constexpr Count operator+(Count a, Count b) { return Count(a.value + b.value); }
  friend constexpr Count operator-(Count a, Count b) { return Count(a.value - b.value); }
  friend constexpr Count operator*(Count a, std::int64_t n) { return Count(a.value * n); }
  friend constexpr Count operator*(std::int64_t n, Count a) { return Count(a.value * n); }
  friend constexpr Count operator/(Count a, std::int64_t n) { return Count(a.value / n); }
  friend constexpr auto operator<=>(Count, Count) = default;
};
}  // namespace detail

using Elements = detail::Count<struct ElementsTag>;
using Bytes = detail::Count<struct BytesTag>;

/// A process (or, on the thread transport, a thread) of a communicator: 0 to size - 1.
struct Rank {
  int value = 0;
  constexpr Rank() = default;
  constexpr explicit Rank(int v) : value(v) {}
  friend constexpr auto operator<=>(Rank, Rank) = default;
};

/// A unit of a ModelSpec, in the order of declaration. A default-constructed id names no unit.
struct UnitId {
  int value = -1;
  constexpr UnitId() = default;
  constexpr explicit UnitId(int v) : value(v) {}
  friend constexpr auto operator<=>(UnitId, UnitId) = default;
};
inline constexpr UnitId kNoUnit{};

/// Element types of tensors and of collectives.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i64, u8 };

constexpr std::int64_t size_of(DType t) {
  switch (t) {
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::f16: return 2;
    case DType::f64: return 8;
    case DType::i64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::f64: return "fp64";
    case DType::i64: return "int64";
    case DType::u8: return "uint8";
  }
  return "?";
}

constexpr Bytes to_bytes(Elements n, DType t) { return Bytes(n.value * size_of(t)); }

}  // namespace tessera
