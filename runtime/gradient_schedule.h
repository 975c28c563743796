// Where gradients are written and when they are reduced. The rules are those of docs/determinism.md: the gradient leases of a unit in one
// leaf add into one slot; the reduction starts when the last declared use closes; a lease beyond the declared uses is reduced by itself
// into a shard of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/storage.h"
#include "runtime/unit_state.h"

namespace tessera::runtime {

/// What a gradient lease writes into.
struct GradientTarget {
  Slot* slot = nullptr;     ///< null where all of the unit's gradients are whole
  int extra = -1;           ///< -1: one of the declared uses; j: the j-th beyond them
  std::vector<bool> given;  ///< by tensor: views taken through this lease
};

class GradientSchedule {
 public:
  GradientSchedule(Context& context, Storage& storage);

  /// A gradient lease begins. May wait for an earlier reduction. Throws UsageError where no slot can be had; then no lease is counted.
  GradientTarget open(UnitId unit);
  /// First byte of a trainable segment of the target.
  float* data(UnitId unit, std::size_t segment, const GradientTarget& target);
  /// A gradient lease ends; the last declared one submits the reduction.
  void close(UnitId unit, const GradientTarget& target);
  /// The lease was crossed by an exception: nothing is submitted.
  void drop(UnitId unit, const GradientTarget& target);

  /// The leaf ends: reduces what is left, in unit order.
  void finish_leaf();
  /// Waits for all reductions and adds the further shards of each unit.
  void finish_sum();
  /// Whether any rank gave the tensor a gradient in this step. The same on all ranks.
  bool touched(UnitId unit, std::size_t tensor) const { return units_[index(unit)].touched[tensor]; }
  bool touched(UnitId unit) const;
  /// Starts the next step: nothing is summed yet.
  void reset();

  /// How often each unit was reduced in this step, by unit.
  const std::vector<std::int32_t>& reductions() const { return reductions_; }

  int leases() const;
  std::string live_leases() const;

 private:
  /// The j-th gradient lease of a leaf beyond the declared uses: a sum of its own.
  struct Extra {
    std::vector<Buffer> shares;  // by segment
    bool in_sum = false;
  };
  struct UnitGradients {
    GradientState state = GradientState::idle;
    int opened = 0, closed = 0, live = 0;  // declared leases in this leaf; all leases alive
    int extras_opened = 0;
    bool submitted = false;  // in this leaf
    bool in_sum = false;     // in this step
    Slot* slot = nullptr;
    std::vector<bool> given;       // by tensor, in this leaf
    std::vector<bool> touched;     // by tensor, in this step
    std::vector<Pending> pending;  // reductions that read whole gradients
    std::vector<Extra> extras;
    std::vector<Slot> extra_slots;  // where no pool slot fits
  };
  static std::size_t index(UnitId u) { return static_cast<std::size_t>(u.value); }
  int uses(UnitId unit) const { return context_.spec()[unit].uses; }

  void begin(UnitId unit);  // finds the place of the declared uses and zeroes it
  Slot* pool_slot(UnitId unit);
  Slot* extra_slot(UnitId unit, int extra);
  void settle(Slot& slot);  // waits until nobody reads it
  void settle(UnitId unit);
  void submit(UnitId unit);
  void submit_extra(UnitId unit, const GradientTarget& target);
  void agree_on_optional();
  std::uint64_t fingerprint(const std::vector<bool>& given) const;

  Context& context_;
  Storage& storage_;
  std::vector<UnitGradients> units_;
  std::vector<std::int32_t> reductions_;
  std::int64_t clock_ = 0;
};

}  // namespace tessera::runtime
