// The memory of one engine: what the placement says, allocated once, entered in the ledger, zeroed. Padding is zero from here on.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/placement.h"
#include "tessera/communicator.h"
#include "tessera/memory.h"
#include "tessera/types.h"

namespace tessera::runtime {

/// Memory of one segment on this rank.
struct SegmentStorage {
  Buffer parameters;                           ///< whole, or this rank's share
  const std::byte* full_parameters = nullptr;  ///< the whole, where no rank needs a slot for it: `parameters` itself, or all ranks' shares
  Buffer gradients;                            ///< whole (the caller writes into it), or this rank's share of the sum
  Buffer accumulator;                          ///< share of the sum over leaves, where `gradients` is whole and there are several leaves
  std::array<Buffer, 3> moments;               ///< as many as the optimizer has
};

/// A place for one unit's full flat.
struct Slot {
  Buffer buffer;
  UnitId holder = kNoUnit;       ///< whose values it holds, or held last
  bool held = false;             ///< may not be given to another unit
  std::vector<Pending> pending;  ///< what still writes or reads it
  std::int64_t last_used = 0;
};

class Storage {
 public:
  Storage(const Placement& placement, Communicator& communicator, std::shared_ptr<MemoryLedger> ledger);

  SegmentStorage& segment(UnitId unit, std::size_t i) { return units_[index(unit)][i]; }
  const SegmentStorage& segment(UnitId unit, std::size_t i) const { return units_[index(unit)][i]; }
  const Placement& placement() const { return placement_; }
  const UnitPlacement& unit(UnitId unit) const { return placement_.units[index(unit)]; }
  const shard::FlatLayout& layout(UnitId unit) const { return placement_.layouts[index(unit)]; }

  /// This rank's share of the parameters: inside the whole ones, or all there is.
  Region owned_parameters(UnitId unit, std::size_t i) const;
  /// This rank's share of the summed gradient.
  Region owned_gradients(UnitId unit, std::size_t i) const;
  /// First element this rank updates, and how many.
  Elements update_begin(const SegmentPlacement& s) const;
  Elements update_count(const SegmentPlacement& s) const { return s.moments_whole ? s.full : s.share; }

  /// The pieces of tensors in elements [begin, begin + count) of a segment; the range may reach into its padding.
  std::vector<shard::TensorRange> pieces(UnitId unit, const SegmentPlacement& s, Elements begin, Elements count) const;

  std::vector<Slot>& parameter_pool() { return parameter_pool_; }
  std::vector<Slot>& gradient_pool() { return gradient_pool_; }
  Slot* own_parameter_slot(UnitId unit) { return own_parameters_[index(unit)].get(); }
  Slot* own_gradient_slot(UnitId unit) { return own_gradients_[index(unit)].get(); }

  /// A further allocation, outside the forecast; zeroed. Throws UsageError where the budget forbids it.
  Buffer extra(Bytes bytes, Category category, Bytes budget, const std::string& what);

  /// Padding elements that are not zero.
  Elements dirty_padding(const ModelSpec& spec) const;

 private:
  static std::size_t index(UnitId u) { return static_cast<std::size_t>(u.value); }
  enum class ReadBy : std::uint8_t { this_rank, peers };
  Buffer zeroed(Bytes bytes, Category category, ReadBy readers);

  Placement placement_;
  Communicator& communicator_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::vector<std::vector<SegmentStorage>> units_;
  std::vector<Slot> parameter_pool_, gradient_pool_;
  std::vector<std::unique_ptr<Slot>> own_parameters_, own_gradients_;
};

}  // namespace tessera::runtime
