#include "shard/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fmt/format.h>

#include "tessera/error.h"

namespace tessera::shard {
namespace {

/// The one place where errno becomes an exception. `what` says what was tried, with its values.
[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw CheckpointError(fmt::format("{}: {} failed: {}", path, what, std::generic_category().message(error)), path);
}

Descriptor open_to_read(const std::string& path, int flags) {
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (descriptor.get() < 0) fail(path, "opening to read", errno);
  return descriptor;
}

/// Sets `name` to that of a file that did not exist before.
Descriptor create_beside(const std::string& path, std::string& name) {
  constexpr int kAttempts = 1000;  // names left by writers that were killed and had the same process number
  for (int i = 0; i < kAttempts; ++i) {
    name = fmt::format("{}.tmp.{}.{}", path, ::getpid(), i);
    Descriptor descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (descriptor.get() >= 0) return descriptor;
    if (errno != EEXIST) fail(path, fmt::format("creating the temporary file {}", name), errno);
  }
  throw CheckpointError(fmt::format("{0}: {1} files {0}.tmp.* lie beside it; remove those of dead processes", path, kAttempts), path);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

struct stat status_of(const Descriptor& descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) fail(path, "fstat", errno);
  return status;
}

}  // namespace

Descriptor::~Descriptor() { close(); }

int Descriptor::close() {
  const int value = std::exchange(value_, -1);
  return value >= 0 && ::close(value) != 0 ? errno : 0;
}

// Not waiting matters for a pipe that lies where a file should.
InputFile::InputFile(std::string path) : path_(std::move(path)), descriptor_(open_to_read(path_, O_NONBLOCK)) {
  if (!S_ISREG(status_of(descriptor_, path_).st_mode)) throw CheckpointError(fmt::format("{}: not a regular file", path_), path_);
}

std::uint64_t InputFile::size_bytes() const { return static_cast<std::uint64_t>(status_of(descriptor_, path_).st_size); }

void InputFile::read(std::uint64_t offset, void* data, std::size_t bytes) const {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(descriptor_.get(), static_cast<char*>(data) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, fmt::format("reading {} bytes at offset {}", bytes - done, offset + done), errno);
    if (n == 0)
      throw CheckpointError(
          fmt::format("{}: ends at byte {}, but {} more were to be read; it was cut off", path_, offset + done, bytes - done), path_);
    done += static_cast<std::size_t>(n);
  }
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)), descriptor_(create_beside(path_, temporary_)) {}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::uint64_t offset, const void* data, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pwrite(descriptor_.get(), static_cast<const char*>(data) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path_, fmt::format("writing {} bytes at offset {}", bytes - done, offset + done), n < 0 ? errno : ENOSPC);
    done += static_cast<std::size_t>(n);
  }
}

void OutputFile::commit() {
  if (temporary_.empty()) throw UsageError(fmt::format("{}: committed twice", path_));
  if (::fsync(descriptor_.get()) != 0) fail(path_, "syncing it to the disk", errno);
  if (const int error = descriptor_.close(); error != 0) fail(path_, "closing it", error);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, fmt::format("renaming {} to it", temporary_), errno);
  temporary_.clear();
  const std::string folder = folder_of(path_);
  const Descriptor opened = open_to_read(folder, O_DIRECTORY);
  // Some network file systems cannot sync a folder; the rename is as durable there as they make it.
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP) fail(path_, fmt::format("syncing the folder {}", folder), errno);
}

}  // namespace tessera::shard
