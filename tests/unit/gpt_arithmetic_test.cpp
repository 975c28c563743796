#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/gpt_by_hand.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifndef SANITIZED
// Counts the program's allocations by standing in front of glibc's.
extern "C" void* __libc_malloc(std::size_t size);
namespace {
std::atomic<long> allocations{0};
}
extern "C" void* malloc(std::size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
#endif

namespace {

using tessera::GptConfig;
using tessera::testing::GptByHand;

// Odd everywhere; more tokens than a block of attention rows; logits in several blocks.
const GptConfig kSizes[] = {{.layers = 2, .heads = 3, .width = 12, .context = 7, .vocab = 11},
                            {.layers = 1, .heads = 1, .width = 5, .context = 1, .vocab = 2},
                            {.layers = 1, .heads = 2, .width = 6, .context = 131, .vocab = 2051}};

double largest(const GptByHand::Values& values) {
  double most = 0.0;
  for (const float v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

bool same_bits(const GptByHand::Values& a, const GptByHand::Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("gpt: the loss equals a naive fp64 forward pass") {
  for (const GptConfig& config : kSizes) {
    for (const std::int64_t sequences : {1, 2}) {
      GptByHand gpt(config, sequences);
      const double expected = gpt.loss_in_double(gpt.weights_in_double());
      CHECK(gpt.train() == doctest::Approx(expected).epsilon(2e-6));
    }
  }
}

TEST_CASE("gpt: gradients equal central differences of a naive fp64 forward pass, in every tensor") {
  for (const GptConfig& config : kSizes) {
    GptByHand gpt(config, 2);
    gpt.train();
    auto weights = gpt.weights_in_double();
    for (const auto& entry : gpt.gradients) {
      const std::string& name = entry.first;
      const auto& gradient = entry.second;
      INFO(name);
      const double scale = std::max(largest(gradient), 1e-3);
      for (std::uint64_t i = 0; i < 3; ++i) {
        const auto at = static_cast<std::size_t>(gpt::below(gpt::mix(gpt::key_of(name), i), gradient.size()));
        const double step = 1e-4;
        double& weight = weights.at(name)[at];
        const double there = weight;
        weight = there + step;
        const double above = gpt.loss_in_double(weights);
        weight = there - step;
        const double below = gpt.loss_in_double(weights);
        weight = there;
        CHECK(std::abs(gradient[at] - (above - below) / (2.0 * step)) <= 2e-5 * scale);
      }
    }
  }
}

TEST_CASE("gpt: gradients are added to what is there") {
  GptByHand gpt(kSizes[0], 2);
  gpt.train();
  const auto once = gpt.gradients;
  gpt.train();
  for (const auto& entry : gpt.gradients) {
    const auto& twice = entry.second;
    const auto& first = once.at(entry.first);
    INFO(entry.first);
    for (std::size_t i = 0; i < twice.size(); ++i) CHECK(std::abs(twice[i] - 2.0f * first[i]) <= 1e-5 * std::max(largest(twice), 1e-3));
  }
}

TEST_CASE("gpt: a frozen tensor takes no gradient and changes no other") {
  GptByHand all(kSizes[0], 2);
  all.train();
  for (const auto& each : all.gradients) {
    GptByHand rest(kSizes[0], 2);
    rest.frozen = each.first;
    rest.train();
    for (const auto& entry : rest.gradients) {
      INFO(each.first << " frozen, gradient of " << entry.first);
      if (entry.first == each.first) CHECK(largest(entry.second) == 0.0);
      else CHECK(same_bits(entry.second, all.gradients.at(entry.first)));
    }
  }
}

TEST_CASE("gpt: the same micro-batch gives the same bits at other addresses") {
  for (const GptConfig& config : kSizes) {
    GptByHand a(config, 2);
    std::vector<double> between(12'345, 1.0);  // moves the next allocations
    GptByHand b(config, 2);
    CHECK(a.train() == b.train());
    for (const auto& entry : a.gradients) {
      INFO(entry.first);
      CHECK(same_bits(entry.second, b.gradients.at(entry.first)));
    }
  }
}

TEST_CASE("gpt: forward and backward allocate nothing") {
#ifndef SANITIZED
  const GptConfig sizes[] = {kSizes[0], kSizes[2], {.layers = 1, .heads = 4, .width = 512, .context = 64, .vocab = 3000}};
  for (const GptConfig& config : sizes) {
    GptByHand gpt(config, 2);
    gpt.train();
    const long before = allocations;
    gpt.train();
    CHECK(allocations == before);
  }
#endif
}

TEST_CASE("gpt: the arena is as large as gpt_activation_bytes says, its pieces aligned and apart") {
  for (const GptConfig& config : kSizes) {
    const gpt::Activations a(config, 3);
    CHECK(a.bytes() == tessera::gpt_activation_bytes(config, 3));
    std::vector<std::pair<const float*, std::int64_t>> pieces;
    const std::int64_t n = 3 * config.context;
    const std::int64_t c = config.width;
    for (const auto& b : a.blocks()) {
      pieces.insert(pieces.end(), {{b.input, n * c},
                                   {b.qkv, 3 * n * c},
                                   {b.log_sum_exp, n * config.heads},
                                   {b.attended, n * c},
                                   {b.middle, n * c},
                                   {b.hidden, 4 * n * c},
                                   {b.statistics, 4 * n}});
    }
    pieces.insert(pieces.end(),
                  {{a.output(), n * c},
                   {a.output_statistics(), 2 * n},
                   {a.stream_gradient(), n * c},
                   {a.scratch().normalized, n * c},
                   {a.scratch().narrow, n * c},
                   {a.scratch().wide, 4 * n * c},
                   {a.scratch().scores, std::max(2 * tessera::kGptScoreRows * config.context, a.scratch().logit_rows * config.vocab)}});
    std::sort(pieces.begin(), pieces.end());
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      CHECK(reinterpret_cast<std::uintptr_t>(pieces[i].first) % 64 == 0);
      if (i > 0) CHECK(pieces[i - 1].first + pieces[i - 1].second <= pieces[i].first);
      bytes += (pieces[i].second * 4 + 63) / 64 * 64;
    }
    CHECK(bytes == a.bytes().value);
  }
}

TEST_CASE("gpt: the count of parameters is the model's, and GPT-2's is 124,439,808") {
  for (const GptConfig& config : kSizes) CHECK(tessera::gpt_parameters(config) == tessera::describe_gpt(config).spec.elements());
  CHECK(tessera::gpt_parameters({.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocab = 50257}).value == 124'439'808);
}

TEST_CASE("gpt: matrix FLOPs are two for each product that forward computes") {
  const GptConfig c = kSizes[0];
  double products = 0.0;  // of one sequence
  for (std::int64_t t = 0; t < c.context; ++t) {
    products += static_cast<double>(c.layers * (3 + 1 + 4 + 4) * c.width * c.width + c.vocab * c.width);
    products += static_cast<double>(c.layers * 2 * c.width * (t + 1));  // scores, and values weighted by them
  }
  CHECK(tessera::gpt_forward_flops_per_token(c) * static_cast<double>(c.context) == doctest::Approx(2.0 * products));
  CHECK(tessera::gpt_training_flops_per_token(c) == 3.0 * tessera::gpt_forward_flops_per_token(c));
}

TEST_CASE("gpt: a width that heads do not divide, and sizes below 1, are refused") {
  CHECK_THROWS_AS(tessera::describe_gpt({.layers = 1, .heads = 3, .width = 8, .context = 4, .vocab = 4}), tessera::UsageError);
  CHECK_THROWS_AS(tessera::describe_gpt({.layers = 0, .heads = 1, .width = 8, .context = 4, .vocab = 4}), tessera::UsageError);
}

}  // namespace
