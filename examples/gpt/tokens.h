// Where training data comes from: a file of tokens, read a sequence at a time, and which sequence is which sample.
#pragma once

#include <cstdint>
#include <string>

namespace gpt {

/// An open file of token ids. Every id has been checked against the vocabulary; the file is never in memory as a whole.
class TokenFile {
 public:
  enum class Kind { bytes, uint16 };

  /// Throws InputError naming `flag` and the file: missing, empty, odd length, an id not below `vocab`, fewer than `least` tokens.
  TokenFile(const std::string& flag, const std::string& path, Kind kind, std::int64_t vocab, std::int64_t least);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  std::int64_t count() const { return count_; }
  /// Tokens [first, first + n) into `out`. Throws std::runtime_error if the file has shrunk or changed into something out of range.
  void read(std::int64_t first, std::int64_t n, std::int32_t* out) const;

 private:
  std::string path_;
  Kind kind_;
  std::int64_t vocab_;
  std::int64_t count_ = 0;
  int descriptor_ = -1;
};

/// Which tokens sample `sample` of step `step` starts at.
class Sampler {
 public:
  enum class Order { random, sequential };
  Sampler(Order order, std::uint64_t seed, std::int64_t tokens, std::int64_t batch, std::int64_t context)
      : order_(order), seed_(seed), tokens_(tokens), batch_(batch), context_(context) {}

  std::int64_t start_of(std::int64_t step, std::int64_t sample) const;
  /// Whole sequences in the file: sequential order starts again after as many.
  std::int64_t sequences() const { return (tokens_ - 1) / context_; }

 private:
  Order order_;
  std::uint64_t seed_;
  std::int64_t tokens_;
  std::int64_t batch_;
  std::int64_t context_;
};

}  // namespace gpt
