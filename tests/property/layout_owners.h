// Who owns each element of each tensor, counted the slow way.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "shard/flat_layout.h"

namespace tessera::shard {

/// owners[tensor][element]: the indices of the shards whose range holds the element.
inline std::vector<std::vector<std::vector<int>>> owners_of(const FlatLayout& layout, const UnitSpec& unit) {
  std::vector<std::vector<std::vector<int>>> owners;
  for (const TensorSpec& t : unit.tensors) owners.emplace_back(static_cast<std::size_t>(t.elements().value));
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    const Segment& segment = layout.segments()[s];
    for (int index = 0; index < segment.shards; ++index) {
      const Elements begin = layout.shard_begin(static_cast<int>(s), index);
      for (const TensorRange& r : layout.pieces(static_cast<int>(s), begin, segment.per_shard))
        for (std::int64_t i = 0; i < r.elements.value; ++i)
          owners[static_cast<std::size_t>(r.tensor)][static_cast<std::size_t>(r.tensor_offset.value + i)].push_back(index);
    }
  }
  return owners;
}

/// How many elements do not have exactly one owner, with the number of elements seen.
inline std::pair<std::int64_t, std::int64_t> wrongly_owned(const FlatLayout& layout, const UnitSpec& unit) {
  std::int64_t wrong = 0;
  std::int64_t seen = 0;
  for (const auto& tensor : owners_of(layout, unit))
    for (const auto& element : tensor) {
      ++seen;
      wrong += element.size() == 1 ? 0 : 1;
    }
  return {wrong, seen};
}

}  // namespace tessera::shard
