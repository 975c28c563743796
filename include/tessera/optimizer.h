// Optimizers as values: hyperparameters here, arithmetic in shard/optimizer.h. All work element by element on a shard, in fp32. AdamW,
// Adam, Sgd and Adagrad follow torch.optim (no dampening, no lr_decay), Lion its paper. Options::groups says which tensors decay; by
// default those of two or more dimensions.
#pragma once

#include <string_view>
#include <variant>

namespace tessera {

/// Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101). 8 bytes of moments per element, 12 with amsgrad (Reddi et
/// al., arXiv 1904.09237).
struct AdamW {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.01f;
  bool amsgrad = false;
};

/// Decay added to the gradient, L2 (Kingma and Ba, arXiv 1412.6980). 8 bytes of moments per element, 12 with amsgrad.
struct Adam {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  bool amsgrad = false;
};

/// Momentum (Sutskever et al., ICML 2013) costs 4 bytes per element; without it there is no state.
struct Sgd {
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  bool nesterov = false;
};

/// Duchi, Hazan and Singer 2011. 4 bytes of state per element.
struct Adagrad {
  float eps = 1e-10f;
  float weight_decay = 0.0f;
};

/// Chen et al., arXiv 2302.06675, decoupled decay. 4 bytes of moments per element.
struct Lion {
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay = 0.0f;
};

using Optimizer = std::variant<AdamW, Adam, Sgd, Adagrad, Lion>;

std::string_view name_of(const Optimizer& optimizer);  ///< "adamw", "adam", "sgd", "adagrad", "lion"
int moments_per_element(const Optimizer& optimizer);   ///< fp32 values of state

}  // namespace tessera
