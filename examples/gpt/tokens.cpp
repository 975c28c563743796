#include "examples/gpt/tokens.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "examples/gpt/config.h"
#include "examples/gpt/counter_random.h"

namespace gpt {
namespace {

constexpr std::int64_t kPiece = 16'384;  // tokens read at a time

std::int64_t size_of(TokenFile::Kind kind) { return kind == TokenFile::Kind::bytes ? 1 : 2; }

}  // namespace

TokenFile::TokenFile(const std::string& flag, const std::string& path, Kind kind, std::int64_t vocab, std::int64_t least)
    : path_(path), kind_(kind), vocab_(vocab) {
  const auto refuse = [&](const std::string& what) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw InputError(fmt::format("{} {}: {}", flag, path, what));
  };
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) refuse(fmt::format("{}; give a file that can be read", std::strerror(errno)));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) refuse("is not a regular file; give a file of training text");
  const std::int64_t bytes = status.st_size;
  if (bytes == 0) refuse("is empty; give a file with text");
  if (bytes % size_of(kind) != 0) refuse(fmt::format("has {} bytes, an odd number, but holds two-byte token ids; is it complete?", bytes));
  count_ = bytes / size_of(kind);
  if (count_ < least) {
    refuse(fmt::format("has {} tokens, and one sequence needs context + 1 = {}; give a longer file or a smaller --context", count_, least));
  }
  const std::int64_t ids = kind == Kind::bytes ? 256 : 65'536;
  if (vocab >= ids) return;
  try {
    std::array<std::int32_t, kPiece> piece{};
    for (std::int64_t i = 0; i < count_; i += kPiece) read(i, std::min(kPiece, count_ - i), piece.data());
  } catch (const std::runtime_error& e) { refuse(fmt::format("{}; raise --vocab or give another file", e.what())); }
}

TokenFile::~TokenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TokenFile::read(std::int64_t first, std::int64_t n, std::int32_t* out) const {
  std::array<unsigned char, static_cast<std::size_t>(2 * kPiece)> raw{};
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t wanted = std::min(kPiece, n - done);
    const auto bytes = static_cast<std::size_t>(wanted * size_of(kind_));
    std::size_t have = 0;
    while (have < bytes) {
      const ssize_t got = ::pread(descriptor_, raw.data() + have, bytes - have,
                                  static_cast<off_t>((first + done) * size_of(kind_)) + static_cast<off_t>(have));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        throw std::runtime_error(fmt::format("reading token {} of {} failed: {}", first + done, path_,
                                             got < 0 ? std::strerror(errno) : "the file has become shorter"));
      }
      have += static_cast<std::size_t>(got);
    }
    for (std::int64_t i = 0; i < wanted; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::int32_t id = kind_ == Kind::bytes ? raw[at] : raw[2 * at] | (raw[2 * at + 1] << 8);
      if (id >= vocab_) {
        throw std::runtime_error(fmt::format("token {} has id {}, not below the vocabulary {}", first + done + i, id, vocab_));
      }
      out[done + i] = id;
    }
    done += wanted;
  }
}

std::int64_t Sampler::start_of(std::int64_t step, std::int64_t sample) const {
  if (order_ == Order::sequential) return (step * batch_ + sample) % sequences() * context_;
  const std::uint64_t bits = mix(mix(seed_ ^ key_of("samples"), static_cast<std::uint64_t>(step)), static_cast<std::uint64_t>(sample));
  return static_cast<std::int64_t>(below(bits, static_cast<std::uint64_t>(tokens_ - context_)));
}

}  // namespace gpt
