// A GPT held in plain arrays, without an engine: forward and backward by the example's arithmetic, and the loss once more in naive fp64.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "examples/gpt/activations.h"
#include "examples/gpt/block.h"
#include "examples/gpt/counter_random.h"
#include "examples/gpt/embedding.h"
#include "tessera/models/gpt.h"

namespace tessera::testing {

struct GptByHand {
  using Values = std::vector<float, Eigen::aligned_allocator<float>>;

  explicit GptByHand(const GptConfig& config_, std::int64_t sequences_)
      : config(config_), sequences(sequences_), model(describe_gpt(config_)), activations(config_, sequences_) {
    for (const auto& unit : model.spec.units()) {
      for (const auto& tensor : unit.tensors) {
        const auto n = static_cast<std::size_t>(tensor.elements().value);
        Values& w = weights[tensor.name];
        w.resize(n);
        const std::uint64_t key = gpt::key_of(tensor.name);
        const bool norm = tensor.name.find("ln_") != std::string::npos && tensor.name.find("weight") != std::string::npos;
        for (std::size_t i = 0; i < n; ++i) w[i] = static_cast<float>((norm ? 1.0 : 0.0) + 0.2 * gpt::normal(key, i));
        gradients[tensor.name].assign(n, 0.0f);
      }
    }
    const auto tokens = static_cast<std::size_t>(sequences * config.context);
    for (std::size_t i = 0; i < tokens; ++i) {
      inputs.push_back(static_cast<std::int32_t>(gpt::below(gpt::mix(1, i), static_cast<std::uint64_t>(config.vocab))));
      targets.push_back(static_cast<std::int32_t>(gpt::below(gpt::mix(2, i), static_cast<std::uint64_t>(config.vocab))));
    }
    for (std::int64_t b = 0; b < config.layers; ++b) {
      gpt::BlockNames& of_block = names.emplace_back();
      for (std::size_t i = 0; i < of_block.size(); ++i) of_block[i] = model.spec[model.blocks[static_cast<std::size_t>(b)]].tensors[i].name;
    }
  }

  float* wanted(const std::string& name) { return frozen == name ? nullptr : gradients.at(name).data(); }

  /// Adds to `gradients`; returns the sum of the token losses.
  double train() {
    const gpt::Shape& shape = activations.shape();
    gpt::embed_forward(shape, inputs.data(), weights.at("wte.weight").data(), weights.at("wpe.weight").data(),
                       activations.blocks()[0].input);
    const auto read = [this](const std::string& name) { return static_cast<const float*>(weights.at(name).data()); };
    const auto write = [this](const std::string& name) { return wanted(name); };
    for (std::size_t i = 0; i < names.size(); ++i) {
      gpt::block_forward(shape, gpt::BlockWeights::from(names[i], read), activations.blocks()[i], activations.scratch(),
                         activations.result_of(i));
    }
    const gpt::HeadWeights head{read("ln_f.weight"), read("ln_f.bias"), read("wte.weight")};
    gpt::head_norm(shape, head, activations.output(), activations.output_statistics(), activations.scratch());
    const double loss = gpt::head_loss_and_gradient(shape, targets.data(), head,
                                                    {write("ln_f.weight"), write("ln_f.bias"), write("wte.weight")}, activations.output(),
                                                    activations.output_statistics(), activations.scratch(), activations.stream_gradient());
    for (std::size_t i = names.size(); i-- > 0;) {
      gpt::block_backward(shape, gpt::BlockWeights::from(names[i], read), gpt::BlockGradients::from(names[i], write),
                          activations.blocks()[i], activations.scratch(), activations.stream_gradient());
    }
    gpt::embed_backward(shape, inputs.data(), activations.stream_gradient(), write("wte.weight"), write("wpe.weight"));
    return loss;
  }

  /// The same loss from `w` by loops in fp64 that share nothing with the example.
  double loss_in_double(const std::map<std::string, std::vector<double>>& w) const {
    double loss = 0.0;
    for (std::int64_t s = 0; s < sequences; ++s) loss += sequence_loss(w, s * config.context);
    return loss;
  }

  std::map<std::string, std::vector<double>> weights_in_double() const {
    std::map<std::string, std::vector<double>> all;
    for (const auto& [name, values] : weights) all[name].assign(values.begin(), values.end());
    return all;
  }

  GptConfig config;
  std::int64_t sequences;
  GptModel model;
  gpt::Activations activations;
  std::map<std::string, Values> weights;
  std::map<std::string, Values> gradients;
  std::vector<std::int32_t> inputs, targets;
  std::vector<gpt::BlockNames> names;
  std::string frozen;  ///< a tensor that takes no gradient

 private:
  using Rows = std::vector<std::vector<double>>;
  using Tensors = std::map<std::string, std::vector<double>>;

  static Rows norm(const Rows& x, const std::vector<double>& weight, const std::vector<double>& bias) {
    Rows y = x;
    for (auto& row : y) {
      double mean = 0.0, variance = 0.0;
      for (const double v : row) mean += v / static_cast<double>(row.size());
      for (const double v : row) variance += (v - mean) * (v - mean) / static_cast<double>(row.size());
      for (std::size_t c = 0; c < row.size(); ++c) row[c] = (row[c] - mean) / std::sqrt(variance + 1e-5) * weight[c] + bias[c];
    }
    return y;
  }
  static Rows linear(const Rows& x, const std::vector<double>& weight, const std::vector<double>& bias) {
    Rows y(x.size(), bias);
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t i = 0; i < x[r].size(); ++i) {
        for (std::size_t o = 0; o < bias.size(); ++o) y[r][o] += x[r][i] * weight[i * bias.size() + o];
      }
    }
    return y;
  }
  Rows attention(const Rows& qkv) const {
    const auto width = static_cast<std::size_t>(config.width);
    const std::size_t d = width / static_cast<std::size_t>(config.heads);
    Rows y(qkv.size(), std::vector<double>(width, 0.0));
    for (std::size_t h = 0; h < static_cast<std::size_t>(config.heads); ++h) {
      for (std::size_t q = 0; q < qkv.size(); ++q) {
        std::vector<double> p(q + 1);
        double sum = 0.0;
        for (std::size_t k = 0; k <= q; ++k) {
          double dot = 0.0;
          for (std::size_t i = 0; i < d; ++i) dot += qkv[q][h * d + i] * qkv[k][width + h * d + i];
          sum += p[k] = std::exp(dot / std::sqrt(static_cast<double>(d)));
        }
        for (std::size_t k = 0; k <= q; ++k) {
          for (std::size_t i = 0; i < d; ++i) y[q][h * d + i] += p[k] / sum * qkv[k][2 * width + h * d + i];
        }
      }
    }
    return y;
  }
  double sequence_loss(const Tensors& w, std::int64_t first) const {
    const auto width = static_cast<std::size_t>(config.width);
    Rows x(static_cast<std::size_t>(config.context), std::vector<double>(width));
    for (std::size_t t = 0; t < x.size(); ++t) {
      const auto id = static_cast<std::size_t>(inputs[static_cast<std::size_t>(first) + t]);
      for (std::size_t c = 0; c < width; ++c) x[t][c] = w.at("wte.weight")[id * width + c] + w.at("wpe.weight")[t * width + c];
    }
    const auto add = [&x](const Rows& y) {
      for (std::size_t t = 0; t < x.size(); ++t) {
        for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
      }
    };
    for (std::int64_t l = 0; l < config.layers; ++l) {
      const auto at = [&](const char* name) -> const std::vector<double>& { return w.at("h." + std::to_string(l) + "." + name); };
      const Rows qkv = linear(norm(x, at("ln_1.weight"), at("ln_1.bias")), at("attn.c_attn.weight"), at("attn.c_attn.bias"));
      add(linear(attention(qkv), at("attn.c_proj.weight"), at("attn.c_proj.bias")));
      Rows hidden = linear(norm(x, at("ln_2.weight"), at("ln_2.bias")), at("mlp.c_fc.weight"), at("mlp.c_fc.bias"));
      for (auto& row : hidden) {
        for (double& v : row) v = 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
      }
      add(linear(hidden, at("mlp.c_proj.weight"), at("mlp.c_proj.bias")));
    }
    x = norm(x, w.at("ln_f.weight"), w.at("ln_f.bias"));
    const std::vector<double>& output = w.at("wte.weight");
    double loss = 0.0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      double sum = 0.0, of_target = 0.0;
      for (std::size_t id = 0; id < static_cast<std::size_t>(config.vocab); ++id) {
        double logit = 0.0;
        for (std::size_t c = 0; c < width; ++c) logit += x[t][c] * output[id * width + c];
        sum += std::exp(logit);
        if (static_cast<std::int32_t>(id) == targets[static_cast<std::size_t>(first) + t]) of_target = logit;
      }
      loss += std::log(sum) - of_target;
    }
    return loss;
  }
};

}  // namespace tessera::testing
