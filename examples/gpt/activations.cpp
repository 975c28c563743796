#include "examples/gpt/activations.h"

#include <map>
#include <string>

namespace gpt {

Activations::Activations(const tessera::GptConfig& config, std::int64_t sequences)
    : shape_{sequences, config.context, config.width, config.heads, config.vocab},
      bytes_(tessera::gpt_activation_bytes(config, sequences)),
      memory_(static_cast<std::byte*>(::operator new (static_cast<std::size_t>(bytes_.value), std::align_val_t{64}))) {
  using Kind = tessera::GptActivation::Kind;
  std::byte* next = memory_.get();
  const auto take = [&next](tessera::Elements elements) {
    auto* piece = reinterpret_cast<float*>(next);
    next += tessera::gpt_activation_piece_bytes(elements).value;
    return piece;
  };
  const auto pieces = tessera::gpt_activations(config, sequences);
  blocks_.resize(static_cast<std::size_t>(config.layers));
  for (BlockActivations& block : blocks_) {
    std::map<std::string, float*> at;
    for (const auto& piece : pieces) {
      if (piece.kind == Kind::per_block) at[piece.name] = take(piece.elements);
    }
    block = {at.at("input"), at.at("qkv"), at.at("log_sum_exp"), at.at("attended"), at.at("middle"), at.at("hidden"), at.at("statistics")};
  }
  std::map<std::string, float*> at;
  for (const auto& piece : pieces) {
    if (piece.kind != Kind::per_block) at[piece.name] = take(piece.elements);
  }
  output_ = at.at("output");
  output_statistics_ = at.at("output_statistics");
  stream_gradient_ = at.at("stream_gradient");
  scratch_ = {at.at("normalized"), at.at("narrow"), at.at("wide"), at.at("scores"), tessera::gpt_logit_rows(config, sequences)};
}

}  // namespace gpt
