#include "runtime/update.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/planted_fault.h"
#include "runtime/arrival.h"
#include "shard/norm.h"
#include "shard/optimizer.h"

namespace tessera::runtime {

Update::Update(Context& context, Storage& storage, const GradientSchedule& gradients, TensorGroups groups)
    : context_(context), storage_(storage), gradients_(gradients), groups_(std::move(groups)) {
  for (const UnitSpec& u : context.spec().units()) steps_.emplace_back(u.tensors.size(), 0);
}

const float* Update::summed(UnitId unit, std::size_t i) const {
  const SegmentPlacement& s = storage_.unit(unit).segments[i];
  if (whole_sum_needed(s)) return storage_.segment(unit, i).gradients.as<float>();
  return static_cast<const float*>(storage_.owned_gradients(unit, i).data);
}

void Update::gather_gradients() {
  std::vector<Pending> pending;
  for (std::size_t u = 0; u < storage_.placement().units.size(); ++u) {
    const UnitId unit(static_cast<int>(u));
    if (!gradients_.touched(unit)) continue;
    for (std::size_t i = 0; i < storage_.unit(unit).segments.size(); ++i) {
      const SegmentPlacement& s = storage_.unit(unit).segments[i];
      if (!whole_sum_needed(s)) continue;
      const Region own = storage_.owned_gradients(unit, i);
      const Buffer& whole = storage_.segment(unit, i).gradients;
      pending.push_back(context_.communicator().all_gather({own.data, own.owner}, {whole.data(), whole.owner()}, s.share, DType::f32,
                                                           context_.label(Channel::reduce, unit, static_cast<int>(i)),
                                                           context_.stream(Channel::reduce)));
    }
  }
  for (Pending& p : pending) context_.wait(p, "wait gradients", kNoUnit);
}

NormVerdict Update::norm(double gradient_scale, NormType type) {
  const auto scale = static_cast<float>(gradient_scale);
  const auto sum = std::make_shared<shard::ExactSum>();
  float largest = 0.0f;
  const Rank rank = context_.communicator().rank();
  for (std::size_t u = 0; u < storage_.placement().units.size(); ++u) {
    const UnitId unit(static_cast<int>(u));
    if (!gradients_.touched(unit)) continue;
    const int times = core::planted(core::Fault::tied_norm_twice) ? context_.spec()[unit].uses : 1;
    for (std::size_t i = 0; i < storage_.unit(unit).segments.size(); ++i) {
      const SegmentPlacement& s = storage_.unit(unit).segments[i];
      if (!s.trainable) continue;
      // A replicated segment is whole everywhere: one rank counts it. All others are counted by the owners of their shares, whatever the
      // stage.
      if (s.replicated && static_cast<int>(u) % context_.communicator().size() != rank.value) continue;
      const Elements skip = s.replicated || !whole_sum_needed(s) ? Elements(0) : s.share * rank.value;
      const float* values = summed(unit, i) + skip.value;
      const Elements count = s.replicated ? s.full : s.share;
      if (type == NormType::infinity) largest = std::max(largest, shard::max_norm(values, count, scale, sum->non_finite));
      else
        for (int t = 0; t < times; ++t) shard::add_norm(*sum, values, count, scale, type == NormType::one ? 1 : 2);
    }
  }
  sum->normalize();
  const std::int64_t own_non_finite = sum->non_finite;
  Communicator& c = context_.communicator();
  Pending agreed = c.all_reduce({sum.get(), sum}, Elements(sizeof(shard::ExactSum) / sizeof(std::int64_t)), DType::i64, ReduceOp::sum,
                                context_.label(Channel::control, kNoUnit), context_.stream(Channel::control));
  context_.wait(agreed, "wait norm", kNoUnit);
  NormVerdict verdict;
  verdict.non_finite = sum->non_finite;
  if (type == NormType::infinity) {
    const auto shared = std::make_shared<float>(largest);
    Pending most = c.all_reduce({shared.get(), shared}, Elements(1), DType::f32, ReduceOp::max, context_.label(Channel::control, kNoUnit),
                                context_.stream(Channel::control));
    context_.wait(most, "wait norm", kNoUnit);
    verdict.norm = static_cast<double>(*shared);
  } else {
    verdict.norm = type == NormType::one ? sum->value() : std::sqrt(sum->value());
  }
  if (verdict.non_finite == 0) return verdict;
  verdict.norm = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::byte> all = exchange(context_, &own_non_finite, sizeof own_non_finite, "wait norm");
  for (std::size_t r = 0; r * sizeof own_non_finite < all.size(); ++r) {
    std::int64_t n = 0;
    std::memcpy(&n, all.data() + r * sizeof n, sizeof n);
    if (n > 0) verdict.where += fmt::format("{}rank {}: {}", verdict.where.empty() ? "" : ", ", r, n);
  }
  return verdict;
}

void Update::apply(const StepOptions& options, double clip_factor) {
  for (std::size_t u = 0; u < storage_.placement().units.size(); ++u) {
    const UnitId unit(static_cast<int>(u));
    const UnitSpec& spec = context_.spec()[unit];
    for (std::size_t t = 0; t < spec.tensors.size(); ++t)
      if (gradients_.touched(unit, t)) ++steps_[u][t];
    for (std::size_t i = 0; i < storage_.unit(unit).segments.size(); ++i) {
      const SegmentPlacement& s = storage_.unit(unit).segments[i];
      if (!s.trainable) continue;
      const SegmentStorage& m = storage_.segment(unit, i);
      const Elements begin = storage_.update_begin(s);
      const float* sum = summed(unit, i);
      float* parameters = m.parameters.as<float>() + (s.parameters_whole ? begin.value : 0);
      for (const shard::TensorRange& r : storage_.pieces(unit, s, begin, storage_.update_count(s))) {
        const auto t = static_cast<std::size_t>(r.tensor);
        if (!gradients_.touched(unit, t)) continue;
        const TensorGroup& g = groups_[u][t];
        const std::int64_t at = (r.flat_offset - begin).value;
        shard::OptimizerRange range;
        range.parameters = parameters + at;
        range.gradients = sum + at;
        for (std::size_t k = 0; k < m.moments.size(); ++k)
          if (m.moments[k]) range.moments[k] = m.moments[k].as<float>() + at;
        range.count = r.elements;
        shard::update(context_.options().optimizer,
                      {.learning_rate = options.learning_rate * g.learning_rate_scale,
                       .step = steps_[u][t],
                       .decay = g.decay,
                       .gradient_scale = static_cast<float>(options.gradient_scale),
                       .clip_factor = static_cast<float>(clip_factor)},
                      range);
      }
    }
  }
}

void Update::gather_parameters() {
  std::vector<Pending> pending;
  for (std::size_t u = 0; u < storage_.placement().units.size(); ++u) {
    const UnitId unit(static_cast<int>(u));
    if (!gradients_.touched(unit)) continue;
    for (std::size_t i = 0; i < storage_.unit(unit).segments.size(); ++i) {
      const SegmentPlacement& s = storage_.unit(unit).segments[i];
      if (!s.trainable || !s.parameters_whole || s.moments_whole) continue;
      const Region own = storage_.owned_parameters(unit, i);
      const Buffer& whole = storage_.segment(unit, i).parameters;
      pending.push_back(context_.communicator().all_gather({own.data, own.owner}, {whole.data(), whole.owner()}, s.share, s.dtype,
                                                           context_.label(Channel::gather, unit, static_cast<int>(i)),
                                                           context_.stream(Channel::gather)));
    }
  }
  for (Pending& p : pending) context_.wait(p, "wait parameters", kNoUnit);
}

}  // namespace tessera::runtime
