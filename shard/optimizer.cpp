#include "shard/optimizer.h"

#include <cmath>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::shard {
namespace {

void require(bool ok, std::string_view optimizer, std::string_view field, float value, std::string_view range) {
  if (!ok) throw UsageError(fmt::format("{}: {} is {}; it must be {}", optimizer, field, value, range));
}
void require_rate(std::string_view optimizer, std::string_view field, float x) {
  require(x >= 0.0f && x < 1.0f, optimizer, field, x, "at least 0 and below 1");
}
void require_amount(std::string_view optimizer, std::string_view field, float x) {
  require(x >= 0.0f && std::isfinite(x), optimizer, field, x, "at least 0 and finite");
}

template <class Hyper>
void refuse_bad_adam(std::string_view name, const Hyper& h) {
  require_rate(name, "beta1", h.beta1);
  require_rate(name, "beta2", h.beta2);
  require_amount(name, "eps", h.eps);
  require_amount(name, "weight_decay", h.weight_decay);
}
void refuse_bad(const AdamW& h) { refuse_bad_adam("adamw", h); }
void refuse_bad(const Adam& h) { refuse_bad_adam("adam", h); }
void refuse_bad(const Sgd& h) {
  require_rate("sgd", "momentum", h.momentum);
  require_amount("sgd", "weight_decay", h.weight_decay);
  require(!h.nesterov || h.momentum > 0.0f, "sgd", "momentum", h.momentum, "above 0 with nesterov");
}
void refuse_bad(const Adagrad& h) {
  require_amount("adagrad", "eps", h.eps);
  require_amount("adagrad", "weight_decay", h.weight_decay);
}
void refuse_bad(const Lion& h) {
  require_rate("lion", "beta1", h.beta1);
  require_rate("lion", "beta2", h.beta2);
  require_amount("lion", "weight_decay", h.weight_decay);
}

}  // namespace

void check(const Optimizer& optimizer) {
  std::visit([](const auto& hyper) { refuse_bad(hyper); }, optimizer);
}

}  // namespace tessera::shard

namespace tessera {
namespace {

struct Facts {
  std::string_view name;
  int moments;
};

Facts facts(const AdamW& h) { return {"adamw", h.amsgrad ? 3 : 2}; }
Facts facts(const Adam& h) { return {"adam", h.amsgrad ? 3 : 2}; }
Facts facts(const Sgd& h) { return {"sgd", h.momentum == 0.0f ? 0 : 1}; }
Facts facts(const Adagrad&) { return {"adagrad", 1}; }
Facts facts(const Lion&) { return {"lion", 1}; }

Facts facts_of(const Optimizer& optimizer) {
  return std::visit([](const auto& hyper) { return facts(hyper); }, optimizer);
}

}  // namespace

std::string_view name_of(const Optimizer& optimizer) { return facts_of(optimizer).name; }
int moments_per_element(const Optimizer& optimizer) { return facts_of(optimizer).moments; }

}  // namespace tessera
