#include "examples/gpt/model.h"

#include <algorithm>
#include <string_view>

#include "examples/gpt/embedding.h"

namespace gpt {
namespace {

using tessera::Phase;

float* wanted(const tessera::GradientLease& lease, std::string_view tensor) { return lease.wants(tensor) ? lease[tensor].data() : nullptr; }

BlockWeights block_weights(const tessera::ParameterLease& lease, const BlockNames& names) {
  return BlockWeights::from(names, [&](std::string_view name) { return lease[name].data(); });
}

BlockGradients block_gradients(const tessera::GradientLease& lease, const BlockNames& names) {
  return BlockGradients::from(names, [&](std::string_view name) { return wanted(lease, name); });
}

HeadWeights head_weights(const tessera::ParameterLease& lease) {
  return {lease["ln_f.weight"].data(), lease["ln_f.bias"].data(), lease["wte.weight"].data()};
}

// Adds the time until its end to a sum.
class Timed {
 public:
  explicit Timed(std::chrono::steady_clock::duration& sum) : sum_(sum), begin_(std::chrono::steady_clock::now()) {}
  ~Timed() { sum_ += std::chrono::steady_clock::now() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::chrono::steady_clock::duration& sum_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

Model::Model(tessera::Engine& engine, const tessera::GptModel& description, std::int64_t micro_batch)
    : engine_(engine), description_(description), activations_(description.config, micro_batch) {
  for (const tessera::UnitId block : description.blocks) {
    const auto& tensors = description.spec[block].tensors;
    BlockNames& names = names_.emplace_back();
    std::transform(tensors.begin(), tensors.end(), names.begin(), [](const tessera::TensorSpec& tensor) { return tensor.name; });
  }
}

double Model::train_leaf(const std::int32_t* inputs, const std::int32_t* targets) {
  const Shape& shape = activations_.shape();
  const auto& keep = activations_.blocks();
  const Scratch& scratch = activations_.scratch();
  float* gradient = activations_.stream_gradient();
  auto leaf = engine_.micro_batch();
  {
    auto w = engine_.gather(description_.embed);
    Timed timed(compute_);
    embed_forward(shape, inputs, w["wte.weight"].data(), w["wpe.weight"].data(), keep.front().input);
  }
  for (std::size_t i = 0; i < keep.size(); ++i) {
    auto w = engine_.gather(description_.blocks[i]);
    Timed timed(compute_);
    block_forward(shape, block_weights(w, names_[i]), keep[i], scratch, activations_.result_of(i));
  }
  {
    auto w = engine_.gather(description_.embed);
    Timed timed(compute_);
    head_norm(shape, head_weights(w), activations_.output(), activations_.output_statistics(), scratch);
  }
  double loss = 0.0;
  {
    auto w = engine_.gather(description_.embed, Phase::backward);
    auto g = engine_.gradients(description_.embed);
    Timed timed(compute_);
    const HeadGradients gradients{wanted(g, "ln_f.weight"), wanted(g, "ln_f.bias"), wanted(g, "wte.weight")};
    loss = head_loss_and_gradient(shape, targets, head_weights(w), gradients, activations_.output(), activations_.output_statistics(),
                                  scratch, gradient);
  }
  for (std::size_t i = keep.size(); i-- > 0;) {
    auto w = engine_.gather(description_.blocks[i], Phase::backward);
    auto g = engine_.gradients(description_.blocks[i]);
    Timed timed(compute_);
    block_backward(shape, block_weights(w, names_[i]), block_gradients(g, names_[i]), keep[i], scratch, gradient);
  }
  {
    auto g = engine_.gradients(description_.embed);
    Timed timed(compute_);
    embed_backward(shape, inputs, gradient, wanted(g, "wte.weight"), wanted(g, "wpe.weight"));
  }
  leaf.close();
  return loss;
}

void Model::predict(const std::int32_t* tokens, std::int64_t last, float* logits) {
  Shape shape = activations_.shape();
  shape.sequences = 1;
  const bool computes = tokens != nullptr;
  {
    auto w = engine_.gather(description_.embed);
    if (computes) embed_forward(shape, tokens, w["wte.weight"].data(), w["wpe.weight"].data(), activations_.blocks().front().input);
  }
  for (std::size_t i = 0; i < description_.blocks.size(); ++i) {
    auto w = engine_.gather(description_.blocks[i]);
    if (!computes) continue;
    block_forward(shape, block_weights(w, names_[i]), activations_.blocks()[i], activations_.scratch(), activations_.result_of(i));
  }
  auto w = engine_.gather(description_.embed);
  if (computes) head_logits(shape, head_weights(w), activations_.output(), last, activations_.scratch(), logits);
}

}  // namespace gpt
