// Which parts of a unit are whole on every rank and which are sharded, and what memory that takes. One engine serves all stages: a stage is
// nothing but the answers written here. Pure; the forecast and the allocations are read off the same numbers.
#pragma once

#include <string>
#include <vector>

#include "shard/flat_layout.h"
#include "tessera/model_spec.h"
#include "tessera/options.h"
#include "tessera/plan.h"
#include "tessera/types.h"

namespace tessera::runtime {

/// One segment (dtype, trainable) of one unit.
struct SegmentPlacement {
  int segment = 0;  ///< in its FlatLayout
  DType dtype = DType::f32;
  bool trainable = true;
  bool replicated = false;  ///< too small to shard: treated as at stage 0
  bool parameters_whole = true;
  bool parameters_shared = false;  ///< not whole here, but all ranks' shards form the full flat in shared memory: nothing is gathered
  bool gradients_whole = true;     ///< gradients are written straight into a whole buffer; else into a slot
  bool accumulator = false;        ///< the sum over leaves has a share-sized buffer of its own, apart from the whole one
  bool moments_whole = true;       ///< this rank updates the whole segment
  Elements full{};                 ///< elements of the whole segment, with padding; at least share · ranks
  Elements share{};                ///< what one rank owns in gathers and reductions: [rank · share, (rank + 1) · share)
  Elements content{};              ///< without trailing padding
  Bytes parameter_offset{};        ///< in a parameter slot, where parameters are gathered
  Bytes gradient_offset{};         ///< in a gradient slot, where gradients are reduced from one
  Bytes extra_offset{};            ///< in the slot of a gradient lease beyond the declared uses: all trainable segments
};

struct UnitPlacement {
  std::vector<SegmentPlacement> segments;  ///< those with elements
  Bytes parameter_slot{};                  ///< bytes of a gathered unit; 0 where nothing needs gathering
  Bytes gradient_slot{};                   ///< bytes of a gradient slot; 0 where gradients are whole, or none
  Bytes extra_slot{};                      ///< bytes of all trainable segments: a gradient lease beyond the declared uses
  bool own_parameter_slot = false;
  bool own_gradient_slot = false;
};

struct Placement {
  std::vector<shard::FlatLayout> layouts;  ///< by unit
  std::vector<UnitPlacement> units;        ///< by unit
  int moments = 0;                         ///< fp32 state vectors of the optimizer
  Bytes parameter_pool_slot{};             ///< bytes of one pool slot: the largest unit without a slot of its own
  Bytes gradient_pool_slot{};
  Bytes shared{};           ///< of the forecast: what peers read, and so is best allocated where they can
  MemoryForecast forecast;  ///< includes the numbers of pool slots
};

/// Bytes from one segment to the next in a slot: views stay 64-byte aligned.
constexpr Bytes aligned(Bytes b) { return Bytes((b.value + 63) / 64 * 64); }

/// Pure. Throws UsageError for a spec or options that cannot be kept; where the budget is the reason, with the smallest that would do.
Placement place(const ModelSpec& spec, const Options& options, const TransportTraits& transport);

}  // namespace tessera::runtime
