// Small values that all ranks tell each other, outside the engine: what is wrong with the input, what each rank measured.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/world.h"

namespace gpt {

/// Collective. Every rank's value, in rank order.
template <class T>
std::vector<T> from_all_ranks(tessera::World& world, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>, "it travels as bytes");
  std::vector<T> all(static_cast<std::size_t>(world.size()));
  tessera::Stream stream("agreement");
  world.communicator()
      .all_gather({&value}, {all.data()}, tessera::Elements(sizeof(T)), tessera::DType::u8, tessera::Label{}, stream)
      .wait_host();
  return all;
}

/// Collective. Throws InputError on every rank if any rank has something to say (the first rank's text), or if the ranks' fingerprints
/// differ (then `difference`). So a file that only one rank sees damaged ends all ranks alike.
void agree_on_input(tessera::World& world, const std::string& complaint, std::uint64_t fingerprint, const std::string& difference);

}  // namespace gpt
