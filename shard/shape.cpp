#include "shard/shape.h"

namespace tessera::shard {

ShapeSize size_of_shape(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  bool empty = false;
  bool too_many = false;
  for (const std::int64_t d : shape) {
    if (d < 0) return {Elements(0), "negative dimension"};
    if (d == 0) {
      empty = true;
    } else if (product > kMostElements.value / d) {
      too_many = true;
    } else {
      product *= d;
    }
  }
  if (too_many) return {Elements(0), "more than 2^58 elements"};
  return {Elements(empty ? 0 : product), {}};
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace tessera::shard
