// Options in words and as a fingerprint, so that ranks can compare them and say what differs.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/options.h"

namespace tessera::runtime {

std::string in_words(const Options& options);
std::string in_words(const StepOptions& options);
std::uint64_t fingerprint(const Options& options);
std::uint64_t fingerprint(const StepOptions& options);

}  // namespace tessera::runtime
