#include "shard/safetensors_header.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shard/shape.h"
#include "tessera/error.h"

namespace tessera::shard {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";

struct DTypeName {
  std::string_view text;
  DType dtype;
};
constexpr std::array<DTypeName, 6> kDTypes = {
    {{"F32", DType::f32}, {"BF16", DType::bf16}, {"F16", DType::f16}, {"F64", DType::f64}, {"I64", DType::i64}, {"U8", DType::u8}}};

std::string_view text_of(DType dtype) {
  return std::find_if(kDTypes.begin(), kDTypes.end(), [dtype](const DTypeName& d) { return d.dtype == dtype; })->text;
}

/// A tensor as the header states it.
struct Claim {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> data_offsets;
};

/// Reads the header's grammar event by event: a document tree would keep one of two equal keys and say nothing.
/// Every handler returns false to stop the parser, with the reason in fault().
class HeaderHandler final : public nlohmann::json_sax<json> {
 public:
  std::vector<Claim>& claims() { return claims_; }
  const std::string& fault() const { return fault_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(std::int64_t value) override { return unexpected(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) override { return unexpected(text); }
  bool binary(json::binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(std::uint64_t value) override {
    if (where_ != Where::numbers) return unexpected(fmt::format("{}", value));
    numbers_->push_back(value);
    return true;
  }

  bool string(std::string& text) override {
    if (where_ == Where::metadata) return true;
    if (where_ != Where::tensor || field_ != "dtype") return unexpected(fmt::format("\"{}\"", text));
    claims_.back().dtype = std::move(text);
    return true;
  }

  bool start_object(std::size_t) override {
    if (where_ == Where::outside) {
      where_ = Where::header;
      return true;
    }
    if (where_ != Where::header) return unexpected("an object");
    if (key_ == kMetadata) {
      where_ = Where::metadata;
      return true;
    }
    where_ = Where::tensor;
    Claim claim;
    claim.name = key_;
    claims_.push_back(std::move(claim));
    return true;
  }

  bool key(std::string& text) override {
    if (where_ == Where::header) {
      if (!names_.insert(text).second) return refuse(fmt::format("the name '{}' occurs twice", text));
      key_ = std::move(text);
      return true;
    }
    if (where_ == Where::metadata) {
      if (!metadata_names_.insert(text).second) return refuse(fmt::format("{} has '{}' twice", kMetadata, text));
      return true;
    }
    const Claim& claim = claims_.back();
    const bool again =
        (text == "dtype" && claim.dtype) || (text == "shape" && claim.shape) || (text == "data_offsets" && claim.data_offsets);
    if (again) return refuse(fmt::format("tensor '{}' has '{}' twice", claim.name, text));
    if (text != "dtype" && text != "shape" && text != "data_offsets")
      return refuse(fmt::format("tensor '{}' has '{}', which the format does not know", claim.name, text));
    field_ = std::move(text);
    return true;
  }

  bool end_object() override {
    if (where_ == Where::tensor) {
      const Claim& claim = claims_.back();
      if (!claim.dtype || !claim.shape || !claim.data_offsets)
        return refuse(fmt::format("tensor '{}' lacks {}", claim.name, !claim.dtype ? "dtype" : !claim.shape ? "shape" : "data_offsets"));
    }
    where_ = where_ == Where::header ? Where::outside : Where::header;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || field_ == "dtype") return unexpected("an array");
    where_ = Where::numbers;
    auto& target = field_ == "shape" ? claims_.back().shape : claims_.back().data_offsets;
    numbers_ = &target.emplace();
    return true;
  }

  bool end_array() override {
    where_ = Where::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& error) override {
    return refuse(fmt::format("not JSON at byte {}: {}", position, error.what()));
  }

 private:
  enum class Where : std::uint8_t { outside, header, metadata, tensor, numbers };

  bool refuse(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }

  bool unexpected(const std::string& what) {
    switch (where_) {
      case Where::outside: return refuse(fmt::format("it is {}, not an object", what));
      case Where::header: return refuse(fmt::format("'{}' is {}, not an object", key_, what));
      case Where::metadata: return refuse(fmt::format("{} holds {}; it may hold strings only", kMetadata, what));
      case Where::tensor: return refuse(fmt::format("tensor '{}': {} is {}", claims_.back().name, field_, what));
      case Where::numbers: break;
    }
    return refuse(fmt::format("tensor '{}': {} holds {}, not a whole number from 0 to 2^64 - 1", claims_.back().name, field_, what));
  }

  Where where_ = Where::outside;
  std::string key_;    // of the header's object
  std::string field_;  // of the tensor
  std::vector<std::uint64_t>* numbers_ = nullptr;
  std::vector<Claim> claims_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_names_;
  std::string fault_;
};

/// What makes a claim impossible by itself, or empty.
std::string fault_of(const Claim& claim, std::uint64_t data_bytes, SafetensorsEntry& entry) {
  const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeName& d) { return d.text == *claim.dtype; });
  if (known == kDTypes.end())
    return fmt::format("has dtype '{}'; this library holds F64, F32, F16, BF16, I64 and U8; convert it first", *claim.dtype);
  entry.dtype = known->dtype;
  for (const std::uint64_t d : *claim.shape) {
    if (d > static_cast<std::uint64_t>(kMostElements.value)) return fmt::format("has a dimension {}: more than 2^58 elements", d);
    entry.shape.push_back(static_cast<std::int64_t>(d));
  }
  const ShapeSize size = size_of_shape(entry.shape);
  if (!size.fault.empty()) return fmt::format("has shape {}: {}", to_string(entry.shape), size.fault);
  entry.elements = size.elements;
  if (claim.data_offsets->size() != 2) return fmt::format("has {} data_offsets, not 2", claim.data_offsets->size());
  const std::uint64_t begin = (*claim.data_offsets)[0];
  const std::uint64_t end = (*claim.data_offsets)[1];
  if (begin > end) return fmt::format("has data_offsets [{}, {}], which run backwards", begin, end);
  if (end > data_bytes)
    return fmt::format("has data_offsets [{}, {}] out of range: the file holds {} bytes of data; it was cut off or the header is wrong",
                       begin, end, data_bytes);
  const Bytes wanted = to_bytes(entry.elements, entry.dtype);
  if (end - begin != static_cast<std::uint64_t>(wanted.value))
    return fmt::format("has dtype {} and shape {}, which take {} bytes, but data_offsets [{}, {}] of {} bytes", *claim.dtype,
                       to_string(entry.shape), wanted.value, begin, end, end - begin);
  entry.offset = begin;
  return {};
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes, const std::string& path) {
  const auto refuse = [&](const std::string& fault) {
    throw CheckpointError(fmt::format("{}: not a safetensors file: {}", path, fault), path);
  };
  if (file_bytes < kSafetensorsLengthBytes || first_bytes.size() < kSafetensorsLengthBytes)
    refuse(fmt::format("it has {} bytes, fewer than the header's length takes", file_bytes));
  std::uint64_t length = 0;
  for (std::size_t i = kSafetensorsLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  if (length > kSafetensorsMostHeaderBytes)
    refuse(fmt::format("its header would have {} bytes; at most {} are allowed", length, kSafetensorsMostHeaderBytes));
  if (length > file_bytes - kSafetensorsLengthBytes)
    refuse(fmt::format("its header would have {} bytes, but only {} follow; it was cut off", length, file_bytes - kSafetensorsLengthBytes));
  return length;
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes, const std::string& path) {
  const auto refuse = [&path](const std::string& fault) {
    throw CheckpointError(fmt::format("{}: bad safetensors header: {}", path, fault), path);
  };
  // The JSON reader takes NUL for the end and skips a byte order mark; the format allows neither.
  if (header.empty() || header.front() != '{') refuse("it does not start with '{'");
  if (const std::size_t nul = header.find('\0'); nul != std::string_view::npos)
    refuse(fmt::format("it has a NUL at byte {}; padding must be spaces", nul));
  HeaderHandler handler;
  if (!json::sax_parse(header.begin(), header.end(), &handler)) refuse(handler.fault());

  std::vector<SafetensorsEntry> entries;
  entries.reserve(handler.claims().size());
  for (Claim& claim : handler.claims()) {
    SafetensorsEntry entry;
    if (const std::string fault = fault_of(claim, data_bytes, entry); !fault.empty())
      refuse(fmt::format("tensor '{}' {}", claim.name, fault));
    entry.name = std::move(claim.name);
    entries.push_back(std::move(entry));
  }
  // Empty tensors come before the one that starts where they do.
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.offset, a.elements) < std::pair(b.offset, b.elements);
  });
  std::uint64_t end = 0;
  for (SafetensorsEntry& e : entries) {
    if (e.offset < end) refuse(fmt::format("tensor '{}' at {} overlaps the one before it, which ends at {}", e.name, e.offset, end));
    if (e.offset > end) refuse(fmt::format("bytes [{}, {}) before tensor '{}' belong to no tensor", end, e.offset, e.name));
    end = e.offset + static_cast<std::uint64_t>(to_bytes(e.elements, e.dtype).value);
    e.offset += kSafetensorsLengthBytes + header.size();
  }
  if (end != data_bytes) refuse(fmt::format("{} trailing bytes after the last tensor belong to none", data_bytes - end));
  return entries;
}

SafetensorsPlan plan_safetensors(const std::vector<SafetensorsWriter::Tensor>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return size_of(tensors[a].dtype) > size_of(tensors[b].dtype); });
  SafetensorsPlan plan;
  plan.offsets.resize(tensors.size());
  std::unordered_set<std::string> names;
  std::string header = "{";
  Elements total{};
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    const SafetensorsWriter::Tensor& t = tensors[i];
    if (t.name == kMetadata) throw UsageError(fmt::format("a tensor cannot be called '{}': safetensors reserves the name", kMetadata));
    if (!names.insert(t.name).second) throw UsageError(fmt::format("two tensors are called '{}'; names must differ within a file", t.name));
    const ShapeSize size = size_of_shape(t.shape);
    if (!size.fault.empty()) throw UsageError(fmt::format("tensor '{}' has shape {}: {}", t.name, to_string(t.shape), size.fault));
    total += size.elements;
    if (total > kMostElements) throw UsageError(fmt::format("more than {} elements up to tensor '{}'", kMostElements.value, t.name));
    std::string quoted;
    try {
      quoted = json(t.name).dump();
    } catch (const json::exception&) { throw UsageError(fmt::format("the name of tensor {} is not UTF-8, which the format requires", i)); }
    plan.offsets[i] = end;
    const std::uint64_t begin = end;
    end += static_cast<std::uint64_t>(to_bytes(size.elements, t.dtype).value);
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", header.size() > 1 ? "," : "", quoted,
                          text_of(t.dtype), to_string(t.shape), begin, end);
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > kSafetensorsMostHeaderBytes)
    throw UsageError(fmt::format("the header of {} tensors takes {} bytes; at most {} are allowed", tensors.size(), header.size(),
                                 kSafetensorsMostHeaderBytes));
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) plan.prefix += static_cast<char>(header.size() >> (8 * i) & 0xffu);
  plan.prefix += header;
  for (std::uint64_t& offset : plan.offsets) offset += plan.prefix.size();
  plan.file_bytes = plan.prefix.size() + end;
  return plan;
}

}  // namespace tessera::shard
