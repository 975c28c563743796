// Files whose every short read, short write and failed sync is a CheckpointError that names path, offset and cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tessera::shard {

/// An open file descriptor; closes it.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();

  int get() const { return value_; }
  int close();  ///< errno, 0 where it went well

 private:
  int value_;
};

/// A regular file open for reading. Thread-safe.
class InputFile {
 public:
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const;
  /// All of [offset, offset + bytes), or throws.
  void read(std::uint64_t offset, void* data, std::size_t bytes) const;

 private:
  std::string path_;
  Descriptor descriptor_;
};

/// A file that appears under its name, whole and on the disk, at commit(), and replaces what was there. Until then it lies beside
/// that name as
/// "<path>.tmp.<process>.<number>"; without commit() it is removed. Permissions follow the umask.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(OutputFile&& other) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  /// All of [offset, offset + bytes), or throws; then the same call may be tried again.
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  void commit();  ///< once; blocks until the disk has it

 private:
  std::string path_;
  std::string temporary_;  // empty once committed
  Descriptor descriptor_;
};

}  // namespace tessera::shard
