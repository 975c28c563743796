#include "runtime/options_text.h"

#include <fmt/format.h>

namespace tessera::runtime {
namespace {

std::string in_words(const Optimizer& o) {
  struct Visitor {
    std::string operator()(const AdamW& a) const {
      return fmt::format("adamw({},{},{},{},{})", a.beta1, a.beta2, a.eps, a.weight_decay, a.amsgrad);
    }
    std::string operator()(const Adam& a) const {
      return fmt::format("adam({},{},{},{},{})", a.beta1, a.beta2, a.eps, a.weight_decay, a.amsgrad);
    }
    std::string operator()(const Sgd& a) const { return fmt::format("sgd({},{},{})", a.momentum, a.weight_decay, a.nesterov); }
    std::string operator()(const Adagrad& a) const { return fmt::format("adagrad({},{})", a.eps, a.weight_decay); }
    std::string operator()(const Lion& a) const { return fmt::format("lion({},{},{})", a.beta1, a.beta2, a.weight_decay); }
  };
  return std::visit(Visitor{}, o);
}

std::uint64_t hash(const std::string& words) {
  std::uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : words) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

}  // namespace

std::string in_words(const Options& o) {
  return fmt::format(
      "stage={} optimizer={} micro_batches={} parameter_slots={} prefetch={} gradient_slots={} memory_budget={} non_finite={}",
      static_cast<int>(o.stage), in_words(o.optimizer), o.micro_batches, o.parameter_slots, o.prefetch, o.gradient_slots,
      o.memory_budget.value, static_cast<int>(o.non_finite));
}

std::string in_words(const StepOptions& o) {
  return fmt::format("learning_rate={} gradient_scale={} clip_norm={} norm={}", o.learning_rate, o.gradient_scale, o.clip_norm,
                     static_cast<int>(o.norm));
}

std::uint64_t fingerprint(const Options& options) { return hash(in_words(options)); }
std::uint64_t fingerprint(const StepOptions& options) { return hash(in_words(options)); }

}  // namespace tessera::runtime
