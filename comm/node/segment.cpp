#include "comm/node/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "comm/host.h"
#include "tessera/error.h"

namespace tessera::comm::node {

namespace {

constexpr std::int64_t kPage = 4096;
constexpr Bytes kLargestWindow{256 << 10};
// Address space of one communicator, not memory: 47 bits have room for fifteen.
constexpr std::int64_t kMostAddresses = std::int64_t{1} << 43;

Bytes whole_pages(Bytes b) { return Bytes((b.value + kPage - 1) / kPage * kPage); }

[[noreturn]] void refuse(const char* what) {
  throw RuntimeFailure(fmt::format("memory cannot be shared between processes here: {} failed ({})", what, std::strerror(errno)));
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, 256> target{};
  return readlink(path, target.data(), target.size() - 1) > 0 ? std::string(target.data()) : std::string();
}

std::optional<std::int64_t> number_in(const std::string& path) {
  const std::string line = first_line(path);
  if (line.empty() || line.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;  // "max" is no limit
  return std::strtoll(line.c_str(), nullptr, 10);
}

// What control groups leave, version 2 and 1; a group's parents may be tighter than itself.
std::optional<std::int64_t> left_in_group() {
  std::optional<std::int64_t> least;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && controllers != "memory") continue;
    const std::string root = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* limit_name = version_2 ? "/memory.max" : "/memory.limit_in_bytes";
    const char* usage_name = version_2 ? "/memory.current" : "/memory.usage_in_bytes";
    for (std::string group = line.substr(second + 1);;) {
      const std::string folder = root + (group == "/" ? "" : group);
      const auto limit = number_in(folder + limit_name), usage = number_in(folder + usage_name);
      if (limit && usage) least = std::min(least.value_or(INT64_MAX), std::max<std::int64_t>(0, *limit - *usage));
      if (group.empty() || group == "/") break;
      group.resize(group.rfind('/'));
    }
  }
  return least;
}

}  // namespace

SegmentLayout::SegmentLayout(int ranks_, Bytes chunk, Bytes words, Bytes room) : ranks(ranks_) {
  // A window holds an element for every rank, at the least.
  window_bytes = Bytes(std::max(std::min(chunk, kLargestWindow).value, std::int64_t{8} * ranks) / 8 * 8);
  windows_begin = whole_pages(words);
  flats_begin = whole_pages(windows_begin + scratch() * ranks);
  // What all share may take all the room; what one rank has of its own, all the room too, unless there are very many.
  flats_bytes = whole_pages(std::min(room, Bytes(kMostAddresses / 2)));
  own_bytes = whole_pages(std::min(room, Bytes(kMostAddresses / 2 / ranks)));
  own_begin = flats_begin + flats_bytes;
  total = own_begin + own_bytes * ranks;
}

Bytes SegmentLayout::window(Rank rank, Channel channel, int half) const {
  return windows_begin + scratch() * rank.value + window_stride() * (2 * static_cast<int>(channel) + half);
}

Segment::~Segment() {
  close_fd();
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_.value));
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), fd_(std::exchange(other.fd_, -1)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

Segment Segment::map(int fd, Bytes bytes) {
  Segment out;
  out.fd_ = fd;
  void* at = mmap(nullptr, static_cast<std::size_t>(bytes.value), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) refuse("mmap");
  out.data_ = static_cast<std::byte*>(at);
  out.bytes_ = bytes;
  madvise(at, static_cast<std::size_t>(bytes.value), MADV_DONTDUMP);  // a core file of terabytes helps nobody
  return out;
}

Segment Segment::create(Bytes bytes) {
  const int fd = memfd_create("tessera", MFD_CLOEXEC);
  if (fd < 0) refuse("memfd_create");
  if (ftruncate(fd, bytes.value) != 0) {
    const int why = errno;
    close(fd);
    errno = why;
    refuse("ftruncate");
  }
  return map(fd, bytes);
}

Segment Segment::open(int pid, int fd, Bytes bytes) {
  const int own = ::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) refuse("opening a peer's memory under /proc");
  return map(own, bytes);
}

Segment Segment::inherit(int fd, Bytes bytes) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) refuse("dup");
  return map(own, bytes);
}

void Segment::close_fd() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void Segment::give_back(Bytes offset, Bytes bytes) const {
  const std::int64_t begin = (offset.value + kPage - 1) / kPage * kPage, end = (offset + bytes).value / kPage * kPage;
  if (end > begin) madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_REMOVE);
}

Bytes memory_of_host() { return Bytes(std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)); }

Bytes free_memory() {
  std::int64_t available = memory_of_host().value;
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") available = kib * 1024;
  }
  return Bytes(std::min(available, left_in_group().value_or(INT64_MAX)));
}

std::uint64_t host_key() {
  // The same kernel, and each can see the other's /proc entry.
  const std::string name = host_name() + '\n' + first_line("/proc/sys/kernel/random/boot_id") + '\n' + link_target("/proc/self/ns/pid") +
                           '\n' + link_target("/proc/self/ns/user");
  std::uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

}  // namespace tessera::comm::node
