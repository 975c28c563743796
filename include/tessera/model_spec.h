// A model as data: units of named tensors. A unit is what is gathered and released together, usually one transformer block.
// The spec holds no values and no memory of the model; a model that would fit nowhere can be described, planned and laid out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/types.h"

namespace tessera {

enum class Training : std::uint8_t { trainable, frozen };

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;  ///< empty means a scalar: one element; a zero in it means no elements
  DType dtype = DType::f32;
  Training training = Training::trainable;

  Elements elements() const;
};

struct UnitSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  int uses = 1;           ///< gradient leases per leaf; their sum is reduced once
  bool optional = false;  ///< ranks may differ in whether they give it gradients (zeros); all still gather it alike
};

class ModelSpec;

/// Declares tensors of the unit just added. A temporary: convert it to a UnitId, do not keep it.
class UnitBuilder {
 public:
  UnitBuilder& tensor(std::string name, std::vector<std::int64_t> shape, DType dtype = DType::f32, Training training = Training::trainable);
  UnitBuilder& uses(int n);
  UnitBuilder& optional();
  operator UnitId() const { return id_; }

 private:
  friend class ModelSpec;
  UnitBuilder(ModelSpec& spec, UnitId id) : spec_(spec), id_(id) {}
  ModelSpec& spec_;
  UnitId id_;
};

class ModelSpec {
 public:
  /// Throws UsageError for a name already taken. Names of tensors are unique within their unit.
  UnitBuilder unit(std::string name);

  /// The forward order, a unit as often as it is used; the backward order is its reverse. Lets the first leaf prefetch.
  /// Sets `uses` of each unit to its count here unless uses() was called. Without it the first leaf is observed.
  void order(std::vector<UnitId> forward);

  /// Freezes the tensors whose name starts with `prefix`; returns how many did.
  int freeze(std::string_view prefix);

  const std::vector<UnitSpec>& units() const { return units_; }
  const UnitSpec& operator[](UnitId id) const { return units_.at(static_cast<std::size_t>(id.value)); }
  const std::vector<UnitId>& order() const { return order_; }
  Elements elements() const { return elements_; }  ///< of all tensors, without padding
  Elements trainable_elements() const;             ///< without padding
  std::uint64_t fingerprint() const;               ///< equal for equal specs; voted on at setup

 private:
  friend class UnitBuilder;
  std::vector<UnitSpec> units_;
  std::vector<bool> uses_declared_;
  std::vector<UnitId> order_;
  Elements elements_{};
};

}  // namespace tessera
