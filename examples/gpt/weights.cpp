#include "examples/gpt/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "examples/gpt/agreement.h"
#include "examples/gpt/config.h"
#include "examples/gpt/counter_random.h"

namespace gpt {
namespace {

constexpr std::string_view kPrefix = "transformer.";  // of files that transformers' GPT2LMHeadModel wrote

std::string_view without_prefix(std::string_view name) {
  return name.substr(0, kPrefix.size()) == kPrefix ? name.substr(kPrefix.size()) : name;
}

bool ends_with(std::string_view name, std::string_view end) {
  return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}

// Copies of the causal mask that older files carry beside the weights.
bool is_mask(std::string_view name) { return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias"); }

std::string shown(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

tessera::Fill initial_weights(std::uint64_t seed, std::int64_t layers) {
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
  return [seed, residual](const tessera::TensorPiece& piece) {
    const std::string_view name = piece.tensor.name;
    const auto values = piece.values();
    if (piece.tensor.shape.size() < 2) {
      std::fill(values.begin(), values.end(), ends_with(name, ".weight") ? 1.0f : 0.0f);
      return;
    }
    const double deviation = ends_with(name, "c_proj.weight") ? residual : 0.02;
    const std::uint64_t key = mix(seed ^ key_of("weights"), key_of(name));
    auto element = static_cast<std::uint64_t>(piece.begin.value);
    for (float& value : values) value = static_cast<float>(deviation * normal(key, element++));
  };
}

WeightFile::WeightFile(const std::string& path) : path_(path) {
  try {
    reader_ = std::make_shared<tessera::SafetensorsReader>(path);
    read_sizes();
    check_names();
  } catch (const tessera::Error& e) { throw InputError(fmt::format("--init: {}; give a .safetensors file of GPT-2 weights", e.what())); }
}

const tessera::SafetensorsEntry* WeightFile::find(const std::string& name) const {
  const tessera::SafetensorsEntry* entry = reader_->find(name);
  return entry != nullptr ? entry : reader_->find(std::string(kPrefix) + name);
}

void WeightFile::read_sizes() {
  sizes_ = {.layers = 0, .heads = 0, .width = 0, .context = 0, .vocab = 0};
  for (const char* name : {"wte.weight", "wpe.weight"}) {
    const auto* entry = find(name);
    if (entry == nullptr) throw InputError(fmt::format("--init {}: no tensor '{}'; give a file of GPT-2 weights", path_, name));
    if (entry->shape.size() != 2 || entry->elements.value == 0) {
      throw InputError(
          fmt::format("--init {}: '{}' has shape {}, not two dimensions; give a file of GPT-2 weights", path_, name, shown(entry->shape)));
    }
    if (sizes_.vocab == 0) {
      sizes_.vocab = entry->shape[0];
      sizes_.width = entry->shape[1];
    } else {
      sizes_.context = entry->shape[0];
    }
  }
  while (find(fmt::format("h.{}.ln_1.weight", sizes_.layers)) != nullptr) ++sizes_.layers;
  if (sizes_.layers == 0) throw InputError(fmt::format("--init {}: no tensor 'h.0.ln_1.weight'; give a file of GPT-2 weights", path_));
}

void WeightFile::check_names() {
  tessera::GptConfig any_heads = sizes_;
  any_heads.heads = 1;
  std::set<std::string, std::less<>> expected;
  const tessera::GptModel model = tessera::describe_gpt(any_heads);
  for (const auto& unit : model.spec.units()) {
    for (const auto& tensor : unit.tensors) {
      expected.insert(tensor.name);
      const auto* entry = find(tensor.name);
      if (entry == nullptr) throw InputError(fmt::format("--init {}: no tensor '{}'; is the file complete?", path_, tensor.name));
      if (entry->shape != tensor.shape) {
        throw InputError(
            fmt::format("--init {}: '{}' has shape {}, and {} is what wte.weight and wpe.weight ask for; give a file of GPT-2 weights",
                        path_, entry->name, shown(entry->shape), shown(tensor.shape)));
      }
    }
  }
  std::set<std::string, std::less<>> seen;
  std::int64_t masks = 0;
  for (const auto& entry : reader_->entries()) {
    const std::string_view name = without_prefix(entry.name);
    if (!seen.emplace(name).second)
      throw InputError(fmt::format("--init {}: '{}' is there with and without 'transformer.'; keep one", path_, name));
    if (expected.count(name) > 0) continue;
    if (is_mask(name)) {
      ++masks;
    } else if (name == "lm_head.weight") {
      skip_output_matrix(entry);
    } else {
      throw InputError(
          fmt::format("--init {}: tensor '{}' is not one of a GPT-2 with {} layers; remove it", path_, entry.name, sizes_.layers));
    }
  }
  if (masks > 0) notices_.push_back(fmt::format("{}: skipped {} attention mask buffers, they hold no weights", path_, masks));
}

void WeightFile::skip_output_matrix(const tessera::SafetensorsEntry& entry) {
  const auto* wte = find("wte.weight");
  bool equal = entry.shape == wte->shape;
  std::array<float, 4096> a{};
  std::array<float, 4096> b{};
  for (std::int64_t i = 0; equal && i < wte->elements.value; i += 4096) {
    const tessera::Elements n(std::min<std::int64_t>(4096, wte->elements.value - i));
    reader_->read(*wte, tessera::Elements(i), n, a.data());
    reader_->read(entry, tessera::Elements(i), n, b.data());
    equal = std::equal(a.begin(), a.begin() + n.value, b.begin());
  }
  if (!equal) {
    throw InputError(
        fmt::format("--init {}: '{}' differs from wte.weight, but this model ties them; give a file with tied weights", path_, entry.name));
  }
  notices_.push_back(fmt::format("{}: skipped {}, it equals wte.weight", path_, entry.name));
}

tessera::Fill WeightFile::fill() const {
  return [reader = reader_](const tessera::TensorPiece& piece) {
    const auto* entry = reader->find(piece.tensor.name);
    if (entry == nullptr) entry = reader->find(std::string(kPrefix) + piece.tensor.name);
    reader->read(*entry, piece.begin, piece.count, piece.values().data());
  };
}

void export_weights(tessera::World& world, tessera::Engine& engine, const std::string& path) {
  const bool writes = world.rank() == tessera::Rank(0);
  std::optional<tessera::SafetensorsWriter> writer;
  std::string failure;
  const auto attempt = [&](const auto& action) {
    if (!writes || !failure.empty()) return;
    try {
      action();
    } catch (const std::exception& e) {
      failure = e.what();  // the others are still gathering: all leave together, below
    }
  };
  std::vector<tessera::SafetensorsWriter::Tensor> tensors;
  for (const auto& unit : engine.spec().units()) {
    for (const auto& tensor : unit.tensors) tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  attempt([&] { writer.emplace(path, tensors); });
  {
    auto scope = engine.evaluation();
    for (std::size_t i = 0; i < engine.spec().units().size(); ++i) {
      auto lease = engine.gather(tessera::UnitId(static_cast<int>(i)));
      for (const auto& tensor : engine.spec().units()[i].tensors) {
        const auto values = lease[tensor.name];
        attempt([&] { writer->write(tensor.name, values.data(), tessera::Bytes(static_cast<std::int64_t>(values.size_bytes()))); });
      }
    }
  }
  attempt([&] { writer->close(); });
  const auto failed = from_all_ranks(world, static_cast<char>(failure.empty() ? 0 : 1));
  if (failed.front() != 0) throw std::runtime_error("--export: " + (writes ? failure : std::string("rank 0 could not write the weights")));
}

}  // namespace gpt
