// A GPT as data: its units and tensors, parameters, matrix FLOPs and the activations one micro-batch holds. GPT-2's architecture
// (Radford et al. 2019) with its published tensor names: pre-LayerNorm, learned positions, tied output matrix. No arithmetic here:
// examples/gpt computes it, the planner predicts it, both from these functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/model_spec.h"
#include "tessera/types.h"

namespace tessera {

struct GptConfig {
  std::int64_t layers = 4;
  std::int64_t heads = 4;      ///< must divide width
  std::int64_t width = 128;    ///< elements of the residual stream, C
  std::int64_t context = 128;  ///< tokens of a sequence, T
  std::int64_t vocab = 256;    ///< V
};

/// One tensor of a block: its name after the block's prefix "h.<i>.", and its shape.
struct GptTensor {
  const char* name;
  std::vector<std::int64_t> shape;
};

/// The tensors of a transformer block, in the order of GPT-2's checkpoints. Matrices are {inputs, outputs}.
inline std::vector<GptTensor> gpt_block_tensors(const GptConfig& config) {
  const std::int64_t c = config.width;
  return {{"ln_1.weight", {c}},
          {"ln_1.bias", {c}},
          {"attn.c_attn.weight", {c, 3 * c}},
          {"attn.c_attn.bias", {3 * c}},
          {"attn.c_proj.weight", {c, c}},
          {"attn.c_proj.bias", {c}},
          {"ln_2.weight", {c}},
          {"ln_2.bias", {c}},
          {"mlp.c_fc.weight", {c, 4 * c}},
          {"mlp.c_fc.bias", {4 * c}},
          {"mlp.c_proj.weight", {4 * c, c}},
          {"mlp.c_proj.bias", {c}}};
}

/// The model as units: "embed" holds what stands outside the blocks (wte, wpe and the final norm ln_f) and is used twice, as
/// the embedding and as the output matrix; "h.0" ... are the blocks.
struct GptModel {
  GptConfig config;
  ModelSpec spec;
  UnitId embed;
  std::vector<UnitId> blocks;
};

/// Throws UsageError for sizes below 1 and for heads that do not divide the width.
inline GptModel describe_gpt(const GptConfig& config) {
  if (config.layers < 1 || config.heads < 1 || config.width < 1 || config.context < 1 || config.vocab < 1) {
    throw UsageError("a GPT needs layers, heads, width, context and vocab of at least 1");
  }
  if (config.width % config.heads != 0) {
    throw UsageError(std::to_string(config.heads) + " heads do not divide the width " + std::to_string(config.width) +
                     "; choose a width that is a multiple of the heads");
  }
  GptModel model{config, {}, {}, {}};
  model.embed = model.spec.unit("embed")
                    .tensor("wte.weight", {config.vocab, config.width})
                    .tensor("wpe.weight", {config.context, config.width})
                    .tensor("ln_f.weight", {config.width})
                    .tensor("ln_f.bias", {config.width});
  std::vector<UnitId> order{model.embed};
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string name = "h." + std::to_string(i);
    auto unit = model.spec.unit(name);
    for (auto& tensor : gpt_block_tensors(config)) unit.tensor(name + "." + tensor.name, tensor.shape);
    model.blocks.push_back(unit);
    order.push_back(unit);
  }
  order.push_back(model.embed);
  model.spec.order(order);
  return model;
}

/// Elements of all tensors: (V + T + 2) C + L (12 C² + 13 C).
inline Elements gpt_parameters(const GptConfig& config) {
  const std::int64_t c = config.width;
  return Elements((config.vocab + config.context + 2) * c + config.layers * (12 * c * c + 13 * c));
}

/// Floating-point operations of matrix products for one token's forward pass, a multiply and an add counted as two: 24 L C² + 2 V C
/// for the weights, 2 L C (T + 1) for attention, of which only the keys a token may see are counted.
inline double gpt_forward_flops_per_token(const GptConfig& config) {
  const auto c = static_cast<double>(config.width);
  const auto layers = static_cast<double>(config.layers);
  return layers * (24.0 * c * c + 2.0 * c * static_cast<double>(config.context + 1)) + 2.0 * static_cast<double>(config.vocab) * c;
}

/// Forward and backward: three times the forward pass. What is computed a second time to save memory is not counted.
inline double gpt_training_flops_per_token(const GptConfig& config) { return 3.0 * gpt_forward_flops_per_token(config); }

/// Rows of attention scores held at a time, out of one head's T x T.
inline constexpr std::int64_t kGptScoreRows = 64;

/// Tokens whose logits are held at a time: about a megabyte of them, at least 128 tokens, so that the output matrix is read seldom.
inline std::int64_t gpt_logit_rows(const GptConfig& config, std::int64_t sequences) {
  const std::int64_t tokens = sequences * config.context;
  std::int64_t rows = (std::int64_t{1} << 18) / config.vocab;
  if (rows < 128) rows = 128;
  return rows < tokens ? rows : tokens;
}

/// A piece of the memory that forward and backward of one micro-batch work in.
struct GptActivation {
  enum class Kind : std::uint8_t {
    per_block,  ///< one for each block, kept from forward to backward
    once,       ///< kept from forward to backward
    scratch,    ///< reused by every block
  };
  std::string name;
  Kind kind = Kind::once;
  Elements elements{};  ///< fp32 values of one piece
};

/// What examples/gpt allocates for micro-batches of `sequences`, in fp32 values. Its arena is laid out from this list.
/// Not kept, because it costs little to compute again: the outputs of norms and of GELU, attention's probabilities.
inline std::array<GptActivation, 14> gpt_activations(const GptConfig& config, std::int64_t sequences) {
  using Kind = GptActivation::Kind;
  const std::int64_t tokens = sequences * config.context;
  const std::int64_t stream = tokens * config.width;
  return {{{"input", Kind::per_block, Elements(stream)},    // of the block, before ln_1
           {"qkv", Kind::per_block, Elements(3 * stream)},  // queries, keys and values
           {"log_sum_exp", Kind::per_block, Elements(tokens * config.heads)},
           {"attended", Kind::per_block, Elements(stream)},        // before attention's output matrix
           {"middle", Kind::per_block, Elements(stream)},          // between the halves, before ln_2
           {"hidden", Kind::per_block, Elements(4 * stream)},      // of the MLP, before GELU
           {"statistics", Kind::per_block, Elements(4 * tokens)},  // mean and 1/deviation of ln_1 and ln_2
           {"output", Kind::once, Elements(stream)},               // of the last block, before ln_f
           {"output_statistics", Kind::once, Elements(2 * tokens)},
           {"stream_gradient", Kind::scratch, Elements(stream)},
           {"normalized", Kind::scratch, Elements(stream)},
           {"narrow", Kind::scratch, Elements(stream)},
           {"wide", Kind::scratch, Elements(4 * stream)},
           {"scores", Kind::scratch,  // of a few rows of one head; logits of a few tokens
            Elements(std::max(2 * kGptScoreRows * config.context, gpt_logit_rows(config, sequences) * config.vocab))}}};
}

/// Each piece starts on a 64-byte boundary.
inline constexpr Bytes gpt_activation_piece_bytes(Elements elements) { return Bytes((elements.value * 4 + 63) / 64 * 64); }

/// Bytes of the arena for micro-batches of `sequences`.
inline Bytes gpt_activation_bytes(const GptConfig& config, std::int64_t sequences) {
  Bytes bytes{};
  for (const GptActivation& a : gpt_activations(config, sequences)) {
    bytes += gpt_activation_piece_bytes(a.elements) * (a.kind == GptActivation::Kind::per_block ? config.layers : 1);
  }
  return bytes;
}

}  // namespace tessera
