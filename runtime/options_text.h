// Options in words and as a fingerprint, so that ranks can compare them and say what differs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/options.h"

namespace tessera::runtime {

/// What Options::groups says of each tensor, asked once: by unit and tensor.
using TensorGroups = std::vector<std::vector<TensorGroup>>;
TensorGroups resolve_groups(const ModelSpec& spec, const Options& options);

std::string in_words(const Options& options, const TensorGroups& groups);
std::string in_words(const StepOptions& options);
std::uint64_t fingerprint(const std::string& words);

}  // namespace tessera::runtime
