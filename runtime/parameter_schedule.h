// Gathers and releases parameters as the plan says, and serves what the plan did not expect. The only policy here is what to give up when a
// lease needs a slot that the plan did not free: the gathered unit without lease that was used longest ago, the same on every rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/step_plan.h"
#include "runtime/storage.h"
#include "runtime/unit_state.h"

namespace tessera::runtime {

enum class ScopeKind : std::uint8_t { leaf, evaluation };

class ParameterSchedule {
 public:
  ParameterSchedule(Context& context, Storage& storage);

  /// Starts the plan's first gathers. Nothing is gathered ahead beyond the scope's end.
  void open_scope(ScopeKind kind);
  /// Releases what is left; what was observed becomes the next plan if the plan missed anything.
  void close_scope();
  /// The scope was unwound: nothing is learnt, nothing more is started.
  void abandon_scope();

  /// A lease begins: returns when the unit is there. Throws UsageError naming the live leases where no slot can be had; then no lease is
  /// counted.
  void open(UnitId unit);
  /// A lease ends, by its scope's end or by an exception: the plan goes on, since the exception may be caught inside the leaf. `follow` is
  /// false where nothing can be started any more.
  void close(UnitId unit, bool follow);

  /// First byte of a segment of a leased unit.
  const std::byte* data(UnitId unit, std::size_t segment) const;
  /// Fingerprint of the leases so far of units that are read where they lie: no gather compares those between ranks.
  std::uint64_t order() const { return order_; }
  bool leased(UnitId unit) const { return units_[index(unit)].leases > 0; }
  int leases() const;
  std::string live_leases() const;  ///< "'h.0', 'h.1'"
  std::vector<UnitId> gathered() const;

  /// Forgets everything gathered: after a step, a set, or an interrupted step. No lease may be alive.
  void drop_all();
  StepPlan plan() const { return plans_.by_scope[0]; }

  /// All ranks have the same plans now: what was learnt is kept.
  void keep_plans() { kept_ = plans_; }
  /// Ranks may differ in what they have learnt since keep_plans(), because one closed a scope that another had to abandon.
  void restore_plans() {
    plans_ = kept_;
    order_ = 0;
  }

 private:
  struct UnitParameters {
    ParameterState state = ParameterState::sharded;
    int leases = 0;
    Slot* slot = nullptr;
  };
  static std::size_t index(UnitId u) { return static_cast<std::size_t>(u.value); }
  bool gathers(UnitId unit) const { return limits_.gathers[index(unit)]; }

  void follow(LeaseEvent event);
  void carry_out();  // the plan's lines up to the next expected event
  Slot* free_slot(UnitId unit);
  Slot* slot_for_lease(UnitId unit);
  void start_gather(UnitId unit, Slot& slot);
  void arrive(UnitId unit);
  void release(UnitId unit);

  Context& context_;
  Storage& storage_;
  PlanLimits limits_;
  std::vector<bool> shared_;  // by unit: read where the ranks' shards lie
  std::vector<UnitParameters> units_;
  std::int64_t clock_ = 0;  // counts uses of slots
  std::uint64_t order_ = 0;

  struct Plans {
    StepPlan by_scope[2];
    bool known[2] = {false, false};
  };
  Plans plans_, kept_;
  bool scope_open_ = false;
  ScopeKind scope_ = ScopeKind::leaf;
  std::size_t cursor_ = 0;
  bool missed_ = false;
  std::vector<LeaseEvent> observed_;
};

}  // namespace tessera::runtime
