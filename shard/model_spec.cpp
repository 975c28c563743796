#include "tessera/model_spec.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shard/shape.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// Appends values to a canonical text: lengths before contents, so that different specs give different texts.
class Canonical {
 public:
  void put(std::int64_t value) { text_ += fmt::format("{},", value); }
  void put(std::string_view name) {
    put(static_cast<std::int64_t>(name.size()));
    text_ += name;
  }
  std::uint64_t hash() const { return XXH3_64bits(text_.data(), text_.size()); }

 private:
  std::string text_;
};

}  // namespace

Elements TensorSpec::elements() const {
  const shard::ShapeSize size = shard::size_of_shape(shape);
  if (!size.fault.empty()) throw UsageError(fmt::format("tensor '{}' has shape {}: {}", name, shard::to_string(shape), size.fault));
  return size.elements;
}

UnitBuilder& UnitBuilder::tensor(std::string name, std::vector<std::int64_t> shape, DType dtype, Training training) {
  UnitSpec& unit = spec_.units_[static_cast<std::size_t>(id_.value)];
  for (const TensorSpec& t : unit.tensors)
    if (t.name == name) throw UsageError(fmt::format("unit '{}' already has a tensor '{}'", unit.name, name));
  TensorSpec added{std::move(name), std::move(shape), dtype, training};
  const Elements total = spec_.elements_ + added.elements();
  if (total > shard::kMostElements)
    throw UsageError(fmt::format("tensor '{}' of unit '{}' brings the model to {} elements; at most {} can be counted in bytes", added.name,
                                 unit.name, total.value, shard::kMostElements.value));
  unit.tensors.push_back(std::move(added));
  spec_.elements_ = total;
  return *this;
}

UnitBuilder& UnitBuilder::uses(int n) {
  const auto index = static_cast<std::size_t>(id_.value);
  if (n < 1) throw UsageError(fmt::format("unit '{}': uses({}) must be at least 1", spec_.units_[index].name, n));
  spec_.units_[index].uses = n;
  spec_.uses_declared_[index] = true;
  return *this;
}

UnitBuilder& UnitBuilder::optional() {
  spec_.units_[static_cast<std::size_t>(id_.value)].optional = true;
  return *this;
}

UnitBuilder ModelSpec::unit(std::string name) {
  for (const UnitSpec& u : units_)
    if (u.name == name) throw UsageError(fmt::format("the model already has a unit '{}'", name));
  const UnitId id(static_cast<int>(units_.size()));
  UnitSpec unit;
  unit.name = std::move(name);
  units_.push_back(std::move(unit));
  uses_declared_.push_back(false);
  return UnitBuilder(*this, id);
}

void ModelSpec::order(std::vector<UnitId> forward) {
  std::vector<int> counts(units_.size(), 0);
  for (const UnitId id : forward) {
    if (static_cast<std::size_t>(id.value) >= units_.size())  // -1, no unit, is the largest of all
      throw UsageError(fmt::format("order names unit #{}, but the model has {} units", id.value, units_.size()));
    ++counts[static_cast<std::size_t>(id.value)];
  }
  // A unit that the order leaves out is still used once where it is used at all.
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (!uses_declared_[i]) units_[i].uses = std::max(counts[i], 1);
  order_ = std::move(forward);
}

int ModelSpec::freeze(std::string_view prefix) {
  int matched = 0;
  for (UnitSpec& u : units_)
    for (TensorSpec& t : u.tensors)
      if (std::string_view(t.name).substr(0, prefix.size()) == prefix) {
        t.training = Training::frozen;
        ++matched;
      }
  return matched;
}

Elements ModelSpec::trainable_elements() const {
  Elements total{};
  for (const UnitSpec& u : units_)
    for (const TensorSpec& t : u.tensors)
      if (t.training == Training::trainable) total += t.elements();
  return total;
}

std::uint64_t ModelSpec::fingerprint() const {
  Canonical c;
  c.put(static_cast<std::int64_t>(units_.size()));
  for (const UnitSpec& u : units_) {
    c.put(u.name);
    c.put(u.uses);
    c.put(u.optional ? 1 : 0);
    c.put(static_cast<std::int64_t>(u.tensors.size()));
    for (const TensorSpec& t : u.tensors) {
      c.put(t.name);
      c.put(static_cast<std::int64_t>(t.shape.size()));
      for (const std::int64_t d : t.shape) c.put(d);
      c.put(static_cast<std::int64_t>(t.dtype));
      c.put(static_cast<std::int64_t>(t.training));
    }
  }
  c.put(static_cast<std::int64_t>(order_.size()));
  for (const UnitId id : order_) c.put(id.value);
  return c.hash();
}

}  // namespace tessera
