#include "examples/gpt/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "examples/gpt/counter_random.h"

namespace gpt {
namespace {

constexpr double kTemperature = 0.8;

// `chance` is uniform in (0, 1].
std::int32_t draw(const std::vector<float>& logits, double chance) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const float logit : logits) total += std::exp((logit - largest) / kTemperature);
  double left = chance * total;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    left -= std::exp((logits[id] - largest) / kTemperature);
    if (left <= 0.0) return static_cast<std::int32_t>(id);
  }
  return static_cast<std::int32_t>(logits.size() - 1);
}

}  // namespace

std::string sample(tessera::Engine& engine, Model& model, std::int64_t count, std::int32_t prompt, std::uint64_t seed) {
  const bool computes = engine.rank() == tessera::Rank(0);
  const auto context = static_cast<std::size_t>(model.description().config.context);
  const auto vocab = static_cast<std::size_t>(model.description().config.vocab);
  std::vector<std::int32_t> tokens{prompt};
  std::vector<std::int32_t> window(context);
  std::vector<float> logits(vocab);
  for (std::int64_t i = 0; i < count; ++i) {
    auto scope = engine.evaluation();
    if (!computes) {
      model.predict(nullptr, 0, nullptr);
      continue;
    }
    const std::size_t seen = std::min(context, tokens.size());
    std::fill(window.begin(), window.end(), 0);  // positions after the last do not reach back
    std::copy(tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end(), window.begin());
    model.predict(window.data(), static_cast<std::int64_t>(seen) - 1, logits.data());
    tokens.push_back(draw(logits, uniform(mix(seed ^ key_of("text"), static_cast<std::uint64_t>(i)))));
  }
  std::string text;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    if (vocab <= 256) text.push_back(static_cast<char>(tokens[i]));
    else text += std::to_string(tokens[i]) + " ";
  }
  return text;
}

}  // namespace gpt
