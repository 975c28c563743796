#include "examples/gpt/process_memory.h"

#include <fstream>
#include <string>

namespace gpt {
namespace {

// The figure after `key`, in bytes; the kernel writes "Key:   123 kB".
std::int64_t read_kilobytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t kilobytes = 0;
    if (word == key && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t rss_peak_bytes() { return read_kilobytes("/proc/self/status", "VmHWM:"); }

std::int64_t pss_bytes() { return read_kilobytes("/proc/self/smaps_rollup", "Pss:"); }

}  // namespace gpt
