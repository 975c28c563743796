// One transformer block: x + attention(ln_1(x)), then + mlp(ln_2(.)). Weights are read, gradients are added to.
#pragma once

#include <array>
#include <string>

#include "examples/gpt/activations.h"

namespace gpt {

/// The tensors of a block, in the order of tessera::gpt_block_tensors. Pointer is const float* for weights and float* for gradients,
/// where null means frozen: no gradient is wanted.
template <class Pointer>
struct BlockTensors {
  Pointer ln_1_weight{}, ln_1_bias{};
  Pointer c_attn_weight{}, c_attn_bias{};        // C x 3C
  Pointer attn_proj_weight{}, attn_proj_bias{};  // C x C
  Pointer ln_2_weight{}, ln_2_bias{};
  Pointer c_fc_weight{}, c_fc_bias{};          // C x 4C
  Pointer mlp_proj_weight{}, mlp_proj_bias{};  // 4C x C

  /// `names` as BlockNames; view(name) gives each pointer.
  template <class View>
  static BlockTensors from(const std::array<std::string, 12>& names, const View& view) {
    return {view(names[0]), view(names[1]), view(names[2]), view(names[3]), view(names[4]),  view(names[5]),
            view(names[6]), view(names[7]), view(names[8]), view(names[9]), view(names[10]), view(names[11])};
  }
};
/// Full names of a block's tensors, in the order of tessera::gpt_block_tensors.
using BlockNames = std::array<std::string, 12>;
using BlockWeights = BlockTensors<const float*>;
using BlockGradients = BlockTensors<float*>;

/// Reads keep.input, fills the rest of `keep`, writes `result` (N x C).
void block_forward(const Shape& shape, const BlockWeights& w, const BlockActivations& keep, const Scratch& scratch, float* result);

/// `gradient` (N x C): by the result on entry, by the input on return. Uses up `keep`.
void block_backward(const Shape& shape, const BlockWeights& w, const BlockGradients& g, const BlockActivations& keep,
                    const Scratch& scratch, float* gradient);

}  // namespace gpt
