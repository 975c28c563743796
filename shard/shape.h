// How many elements a shape has, with overflow caught.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/types.h"

namespace tessera::shard {

/// The most elements a tensor, a segment or a model may have: eight bytes each still fit a signed 64-bit count with room for
/// padding.
inline constexpr Elements kMostElements{std::int64_t{1} << 58};

struct ShapeSize {
  Elements elements{};       ///< 0 where there is a fault
  std::string_view fault{};  ///< empty for a legal shape, else what is wrong with it
};

/// No dimensions: one element. A zero among them: none. Negative dimensions are a fault, and so is a product of the non-zero
/// dimensions above kMostElements, whatever their order.
ShapeSize size_of_shape(const std::vector<std::int64_t>& shape);

std::string to_string(const std::vector<std::int64_t>& shape);  ///< "[3, 4]"

}  // namespace tessera::shard
