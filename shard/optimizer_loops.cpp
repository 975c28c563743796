// The optimizers' loops, for each instruction set. They have no branches on data and touch element i only, so that a compiler may vectorise
// them at any width and the bits stay the same: every operation is an IEEE one, rounded once (-ffp-contract=off).
#include "shard/optimizer.h"

#include <cmath>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/optimizer_loops.cpp"
#include "core/each_isa.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::shard {
namespace HWY_NAMESPACE {
namespace {

/// 1 - x^n. By squaring: IEEE operations only, so that ranks with different C libraries agree.
double one_minus_power(float x, std::int64_t n) {
  double power = 1.0;
  for (auto square = static_cast<double>(x); n > 0; n /= 2, square *= square)
    if (n % 2 != 0) power *= square;
  return 1.0 - power;
}

/// 1 - x of the fp32 hyperparameter itself, as in the bias correction: that divides by what the weights of all gradients add up to.
float complement(float x) { return static_cast<float>(1.0 - static_cast<double>(x)); }

/// What an optimizer sees of a gradient.
struct Incoming {
  float scale;
  float clip;
  float operator()(float g) const { return g * scale * clip; }
};

float product(float a, float b) { return static_cast<float>(static_cast<double>(a) * static_cast<double>(b)); }

// Decoupled decay and update are subtracted together: p - (lr·wd·p + u) rounds at p's size once, (1 - lr·wd)·p - u three times.

enum class Decay : std::uint8_t { decoupled, in_gradient };
enum class Denominator : std::uint8_t { current, largest };

template <Decay kDecay, Denominator kDenominator, class Hyper>
void adam(const Hyper& h, const OptimizerStep& s, const OptimizerRange& r) {
  const Incoming incoming{s.gradient_scale, s.clip_factor};
  const float weight_decay = s.decay ? h.weight_decay : 0.0f;
  const float shrink = product(s.learning_rate, weight_decay);
  const float take1 = complement(h.beta1);
  const float beta2 = h.beta2;
  const float take2 = complement(h.beta2);
  const float eps = h.eps;
  const auto size = static_cast<float>(static_cast<double>(s.learning_rate) / one_minus_power(h.beta1, s.step));
  const auto unbias = static_cast<float>(1.0 / std::sqrt(one_minus_power(h.beta2, s.step)));
  float* __restrict p = r.parameters;
  const float* __restrict gradients = r.gradients;
  float* __restrict m = r.moments[0];
  float* __restrict v = r.moments[1];
  float* __restrict largest = r.moments[2];
  const std::int64_t count = r.count.value;
  for (std::int64_t i = 0; i < count; ++i) {
    float g = incoming(gradients[i]);
    if constexpr (kDecay == Decay::in_gradient) g += weight_decay * p[i];
    const float first = m[i] + take1 * (g - m[i]);
    const float second = beta2 * v[i] + take2 * g * g;
    m[i] = first;
    v[i] = second;
    float under_root = second;
    if constexpr (kDenominator == Denominator::largest) {
      under_root = largest[i] > second ? largest[i] : second;  // NaN wins, as in torch.maximum
      largest[i] = under_root;
    }
    const float change = size * (first / (std::sqrt(under_root) * unbias + eps));
    if constexpr (kDecay == Decay::decoupled) p[i] -= shrink * p[i] + change;
    else p[i] -= change;
  }
}

template <Decay kDecay, class Hyper>
void adam(const Hyper& h, const OptimizerStep& s, const OptimizerRange& r) {
  if (h.amsgrad) adam<kDecay, Denominator::largest>(h, s, r);
  else adam<kDecay, Denominator::current>(h, s, r);
}

enum class Momentum : std::uint8_t { none, heavy_ball, nesterov };

template <Momentum kMomentum>
void sgd(const Sgd& h, const OptimizerStep& s, const OptimizerRange& r) {
  const Incoming incoming{s.gradient_scale, s.clip_factor};
  const float weight_decay = s.decay ? h.weight_decay : 0.0f;
  const float momentum = h.momentum;
  const float learning_rate = s.learning_rate;
  float* __restrict p = r.parameters;
  const float* __restrict gradients = r.gradients;
  float* __restrict buffer = r.moments[0];
  const std::int64_t count = r.count.value;
  for (std::int64_t i = 0; i < count; ++i) {
    float g = incoming(gradients[i]);
    g += weight_decay * p[i];
    float change = g;
    if constexpr (kMomentum != Momentum::none) {
      const float b = momentum * buffer[i] + g;
      buffer[i] = b;
      change = kMomentum == Momentum::nesterov ? g + momentum * b : b;
    }
    p[i] -= learning_rate * change;
  }
}

void apply(const AdamW& h, const OptimizerStep& s, const OptimizerRange& r) { adam<Decay::decoupled>(h, s, r); }

void apply(const Adam& h, const OptimizerStep& s, const OptimizerRange& r) { adam<Decay::in_gradient>(h, s, r); }

void apply(const Sgd& h, const OptimizerStep& s, const OptimizerRange& r) {
  if (h.momentum == 0.0f) sgd<Momentum::none>(h, s, r);
  else if (h.nesterov) sgd<Momentum::nesterov>(h, s, r);
  else sgd<Momentum::heavy_ball>(h, s, r);
}

void apply(const Adagrad& h, const OptimizerStep& s, const OptimizerRange& r) {
  const Incoming incoming{s.gradient_scale, s.clip_factor};
  const float weight_decay = s.decay ? h.weight_decay : 0.0f;
  const float learning_rate = s.learning_rate;
  const float eps = h.eps;
  float* __restrict p = r.parameters;
  const float* __restrict gradients = r.gradients;
  float* __restrict sum = r.moments[0];
  const std::int64_t count = r.count.value;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = incoming(gradients[i]) + weight_decay * p[i];
    const float squares = sum[i] + g * g;
    sum[i] = squares;
    p[i] -= learning_rate * (g / (std::sqrt(squares) + eps));
  }
}

void apply(const Lion& h, const OptimizerStep& s, const OptimizerRange& r) {
  const Incoming incoming{s.gradient_scale, s.clip_factor};
  const float shrink = product(s.learning_rate, s.decay ? h.weight_decay : 0.0f);
  const float learning_rate = s.learning_rate;
  const float take1 = complement(h.beta1);
  const float take2 = complement(h.beta2);
  float* __restrict p = r.parameters;
  const float* __restrict gradients = r.gradients;
  float* __restrict m = r.moments[0];
  const std::int64_t count = r.count.value;
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = incoming(gradients[i]);
    const float direction = m[i] + take1 * (g - m[i]);
    const auto sign = static_cast<float>((direction > 0.0f ? 1 : 0) - (direction < 0.0f ? 1 : 0));
    m[i] += take2 * (g - m[i]);
    p[i] -= shrink * p[i] + learning_rate * sign;
  }
}

}  // namespace

void update_all(const Optimizer& optimizer, const OptimizerStep& step, const OptimizerRange& range) {
  std::visit([&](const auto& hyper) { apply(hyper, step, range); }, optimizer);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::shard {

void update(const Optimizer& optimizer, const OptimizerStep& step, const OptimizerRange& range) {
  TESSERA_FOR_ISA(update_all)(optimizer, step, range);
}

}  // namespace tessera::shard
#endif
