#include "comm/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "tessera/error.h"

namespace tessera::comm {

namespace {

constexpr std::uint64_t kSplit = 0x73706c6974;  // "split": tells its exchange from a caller's own all_gather

struct Entry {
  std::int64_t color, key, proposal;
};

}  // namespace

Membership agree_on_members(Communicator& parent, int color, int key, std::int64_t proposal) {
  const Entry mine{color, key, proposal};
  std::vector<Entry> all(static_cast<std::size_t>(parent.size()));
  Label label;
  label.channel = Channel::control;
  label.detail = kSplit;
  {
    Stream stream("tessera split");
    parent.all_gather({&mine}, {all.data()}, Elements(3), DType::i64, label, stream).wait_host();
  }
  Membership out;
  for (int r = 0; r < parent.size(); ++r) {
    const Entry& entry = all[static_cast<std::size_t>(r)];
    out.agreed = std::max(out.agreed, entry.proposal);
    if (entry.color == color) out.members.emplace_back(r);
  }
  std::stable_sort(out.members.begin(), out.members.end(),
                   [&](Rank a, Rank b) { return all[static_cast<std::size_t>(a.value)].key < all[static_cast<std::size_t>(b.value)].key; });
  const auto own = std::find(out.members.begin(), out.members.end(), parent.rank());
  out.rank = Rank(static_cast<int>(own - out.members.begin()));
  return out;
}

void check_rank(Rank rank, int size) {
  if (rank.value < 0 || rank.value >= size)
    throw UsageError(fmt::format("rank {} was named, but the ranks are 0 to {}", rank.value, size - 1));
}

void check_size(int size) {
  if (size < 1) throw UsageError(fmt::format("a communicator of {} ranks (at least one is needed)", size));
}

}  // namespace tessera::comm
