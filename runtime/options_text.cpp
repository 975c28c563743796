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

}  // namespace

TensorGroups resolve_groups(const ModelSpec& spec, const Options& options) {
  TensorGroups groups;
  for (const UnitSpec& unit : spec.units()) {
    groups.emplace_back();
    for (const TensorSpec& tensor : unit.tensors)
      groups.back().push_back(options.groups ? options.groups(tensor) : TensorGroup{.decay = tensor.shape.size() >= 2});
  }
  return groups;
}

std::string in_words(const Options& o, const TensorGroups& groups) {
  std::string by_tensor;
  for (const std::vector<TensorGroup>& unit : groups)
    for (const TensorGroup& g : unit) by_tensor += fmt::format("{} {},", g.learning_rate_scale, g.decay);
  return fmt::format(
      "stage={} optimizer={} micro_batches={} parameter_slots={} prefetch={} gradient_slots={} memory_budget={} non_finite={} "
      "deadline_ms={} "
      "groups={:x}",
      static_cast<int>(o.stage), in_words(o.optimizer), o.micro_batches, o.parameter_slots, o.prefetch, o.gradient_slots,
      o.memory_budget.value, static_cast<int>(o.non_finite), o.deadline.count(), fingerprint(by_tensor));
}

std::string in_words(const StepOptions& o) {
  return fmt::format("learning_rate={} gradient_scale={} clip_norm={} norm={}", o.learning_rate, o.gradient_scale, o.clip_norm,
                     static_cast<int>(o.norm));
}

std::uint64_t fingerprint(const std::string& words) {
  std::uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : words) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

}  // namespace tessera::runtime
