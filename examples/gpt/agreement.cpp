#include "examples/gpt/agreement.h"

#include <algorithm>
#include <array>

#include "examples/gpt/config.h"

namespace gpt {

void agree_on_input(tessera::World& world, const std::string& complaint, std::uint64_t fingerprint, const std::string& difference) {
  struct Opinion {
    std::uint64_t fingerprint = 0;
    std::array<char, 1016> complaint{};  // ends with a zero
  };
  Opinion mine{fingerprint, {}};
  std::copy_n(complaint.data(), std::min(complaint.size(), mine.complaint.size() - 1), mine.complaint.data());
  std::replace(mine.complaint.begin(), mine.complaint.end(), '\n', ' ');
  const std::vector<Opinion> all = from_all_ranks(world, mine);
  for (const Opinion& opinion : all) {
    if (opinion.complaint[0] != '\0') throw InputError(opinion.complaint.data());
  }
  for (const Opinion& opinion : all) {
    if (opinion.fingerprint != all.front().fingerprint) throw InputError(difference);
  }
}

}  // namespace gpt
