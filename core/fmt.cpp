// fmt, compiled once. Header-only in every file it costs seconds each; as a library it would have to be exported to whoever links us. So
// the other files see declarations, and the one function behind fmt::format is here. The library formats with fmt::format only: what
// fmt::format_to and fmt::print need beyond it is not here, and a program outside would not link (tests/consumer).
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

#include <string>

namespace tessera::core {

using Format = std::string (*)(fmt::string_view, fmt::format_args);

/// Makes the compiler put the function out.
extern const Format kFormat;
[[gnu::used]] const Format kFormat = &fmt::vformat;

}  // namespace tessera::core
