// What the kernel says this process occupies (Linux). Ranks on threads share one process and report the same figures.
#pragma once

#include <cstdint>

namespace gpt {

std::int64_t rss_peak_bytes();  ///< largest resident set so far; 0 where it is not known
std::int64_t pss_bytes();       ///< resident now, shared pages divided by their users; 0 where it is not known

}  // namespace gpt
