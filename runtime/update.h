// The end of a step: norm, verdict, update. Every rank reads only its own share; what must be agreed is agreed exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/gradient_schedule.h"
#include "runtime/options_text.h"
#include "runtime/storage.h"
#include "tessera/options.h"

namespace tessera::runtime {

/// The gradient norm over all trainable elements of all ranks, and how many elements were NaN or infinite.
struct NormVerdict {
  double norm = 0.0;            ///< NaN where non_finite > 0
  std::int64_t non_finite = 0;  ///< of all ranks
  std::string where;            ///< "rank 2: 17" ... where non_finite > 0
};

class Update {
 public:
  Update(Context& context, Storage& storage, const GradientSchedule& gradients, TensorGroups groups);

  /// Collective. Segments that every rank updates whole get the whole sum.
  void gather_gradients();
  /// Collective.
  NormVerdict norm(double gradient_scale, NormType type);
  /// Local: updates this rank's share of every tensor that was given a gradient.
  void apply(const StepOptions& options, double clip_factor);
  /// Collective: at stages 1 and 2 every rank gets the others' updated shares.
  void gather_parameters();

 private:
  const float* summed(UnitId unit, std::size_t segment) const;  // what update and norm read, from update_begin on
  bool whole_sum_needed(const SegmentPlacement& s) const { return s.trainable && s.moments_whole && s.share < s.full; }

  Context& context_;
  Storage& storage_;
  const GradientSchedule& gradients_;
  TensorGroups groups_;
  std::vector<std::vector<std::int64_t>> steps_;  // by unit and tensor: updates so far, for bias correction
};

}  // namespace tessera::runtime
