// The version of these headers, MAJOR.MINOR.PATCH as in semver.org. Before 1.0 a minor version may break source code.
#pragma once

#include <string_view>

namespace tessera {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace tessera
