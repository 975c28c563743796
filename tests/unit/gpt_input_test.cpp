// What train_gpt reads and decides before it computes.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "examples/gpt/config.h"
#include "examples/gpt/counter_random.h"
#include "examples/gpt/schedule.h"
#include "examples/gpt/tokens.h"
#include "examples/gpt/weights.h"
#include "tessera/safetensors.h"
#include "tests/process/program.h"

namespace {

using namespace tessera::testing;

const std::string kReference = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/";

gpt::CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train_gpt");
  return gpt::read_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST_CASE("schedule: the reference's 40 learning rates, and warm-up alone") {
  const auto expected = nlohmann::json::parse(read_file(kReference + "gpt_tiny.json"))["lr"];
  const gpt::Schedule schedule{3e-3, 3e-4, 5, 40};
  for (std::int64_t step = 0; step < 40; ++step) {
    CHECK(schedule.at(step) == doctest::Approx(expected[static_cast<std::size_t>(step)].get<double>()).epsilon(1e-14));
  }
  const gpt::Schedule all_warm{1.0, 0.1, 4, 4};
  CHECK(all_warm.at(0) == 0.25);
  CHECK(all_warm.at(3) == 1.0);
}

TEST_CASE("random order: every sample lies inside the text, whatever the ranks, and the seed, step and sample all matter") {
  const std::int64_t tokens = 101;
  const std::int64_t context = 20;
  const gpt::Sampler a(gpt::Sampler::Order::random, 1, tokens, 4, context);
  const gpt::Sampler b(gpt::Sampler::Order::random, 2, tokens, 4, context);
  std::set<std::int64_t> starts;
  int same = 0;
  for (std::int64_t step = 0; step < 500; ++step) {
    for (std::int64_t sample = 0; sample < 4; ++sample) {
      const std::int64_t start = a.start_of(step, sample);
      CHECK(start >= 0);
      CHECK(start + context + 1 <= tokens);
      starts.insert(start);
      same += start == b.start_of(step, sample) ? 1 : 0;
    }
  }
  CHECK(starts.size() == static_cast<std::size_t>(tokens - context));  // the first and the last possible start among them
  CHECK(same < 100);                                                   // by chance: 2000 / 81
  const gpt::Sampler least(gpt::Sampler::Order::random, 1, context + 1, 4, context);
  CHECK(least.start_of(7, 3) == 0);
}

TEST_CASE("sequential order: sample b of step s starts at (s*batch + b)*context, and again from the start after the last whole sequence") {
  const gpt::Sampler sampler(gpt::Sampler::Order::sequential, 1, 8 * 32 * 40 + 1, 8, 32);
  CHECK(sampler.sequences() == 320);
  CHECK(sampler.start_of(0, 0) == 0);
  CHECK(sampler.start_of(3, 5) == (3 * 8 + 5) * 32);
  CHECK(sampler.start_of(39, 7) == 319 * 32);
  CHECK(sampler.start_of(40, 1) == 32);
  CHECK(gpt::Sampler(gpt::Sampler::Order::sequential, 1, 8 * 32 * 40, 8, 32).sequences() == 319);  // the last target is missing
}

TEST_CASE("tokens: bytes and little-endian pairs are read from anywhere, also across pieces") {
  const TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes.push_back(static_cast<char>(gpt::mix(static_cast<std::uint64_t>(i))));
  write_file(folder / "t", bytes);
  const auto byte = [&](std::int64_t i) {
    return static_cast<std::int32_t>(static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]));
  };
  const gpt::TokenFile text("--text", folder / "t", gpt::TokenFile::Kind::bytes, 256, 1);
  const gpt::TokenFile pairs("--tokens", folder / "t", gpt::TokenFile::Kind::uint16, 65'536, 1);
  CHECK(text.count() == 100'000);
  CHECK(pairs.count() == 50'000);
  std::vector<std::int32_t> got(40'001);
  text.read(9'999, 40'001, got.data());
  bool equal = true;
  for (std::int64_t i = 0; i < 40'001; ++i) equal = equal && got[static_cast<std::size_t>(i)] == byte(9'999 + i);
  CHECK(equal);
  pairs.read(9'999, 40'001, got.data());
  for (std::int64_t i = 0; i < 40'001; ++i) {
    equal = equal && got[static_cast<std::size_t>(i)] == byte(2 * (9'999 + i)) + 256 * byte(2 * (9'999 + i) + 1);
  }
  CHECK(equal);
}

TEST_CASE("tokens: a file that shrinks while it is used is an error that names it") {
  const TemporaryFolder folder;
  write_file(folder / "t", std::string(100, 'a'));
  const gpt::TokenFile text("--text", folder / "t", gpt::TokenFile::Kind::bytes, 256, 1);
  write_file(folder / "t", std::string(50, 'a'));
  std::vector<std::int32_t> got(100);
  CHECK_THROWS_WITH_AS(text.read(0, 100, got.data()), doctest::Contains("shorter"), std::runtime_error);
}

// Calls the fill for pieces of `size` elements.
std::vector<float> filled(const tessera::Fill& fill, const tessera::UnitSpec& unit, const tessera::TensorSpec& tensor, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements().value));
  for (std::int64_t i = 0; i < tensor.elements().value; i += size) {
    const std::int64_t count = std::min(size, tensor.elements().value - i);
    fill(tessera::TensorPiece{tessera::UnitId(0), unit, tensor, tessera::Elements(i), tessera::Elements(count), values.data() + i});
  }
  return values;
}

TEST_CASE("initial weights: a value depends on seed, tensor and element, not on how a tensor is cut") {
  const tessera::GptModel model = tessera::describe_gpt({.layers = 8, .heads = 2, .width = 32, .context = 16, .vocab = 64});
  const tessera::Fill fill = gpt::initial_weights(1, 8);
  const tessera::Fill other = gpt::initial_weights(2, 8);
  std::set<std::vector<float>> seen;
  for (const auto& unit : model.spec.units()) {
    for (const auto& tensor : unit.tensors) {
      INFO(tensor.name);
      const std::vector<float> whole = filled(fill, unit, tensor, 1'000'000);
      CHECK(whole == filled(fill, unit, tensor, 37));
      if (tensor.shape.size() < 2) {
        const bool ones = tensor.name.find("ln_") != std::string::npos && tensor.name.find("weight") != std::string::npos;
        CHECK(std::all_of(whole.begin(), whole.end(), [&](float v) { return v == (ones ? 1.0f : 0.0f); }));
        continue;
      }
      CHECK(whole != filled(other, unit, tensor, 1'000'000));
      CHECK(seen.insert(whole).second);
      double mean = 0.0;
      double square = 0.0;
      for (const float v : whole) {
        mean += v / static_cast<double>(whole.size());
        square += static_cast<double>(v) * v / static_cast<double>(whole.size());
      }
      const bool ends_a_branch = tensor.name.find("c_proj") != std::string::npos;
      CHECK(std::sqrt(square) == doctest::Approx(ends_a_branch ? 0.02 / 4.0 : 0.02).epsilon(0.12));
      CHECK(std::abs(mean) < 0.005);
    }
  }
}

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

std::vector<Tensor> reference_weights(const std::string& prefix) {
  const tessera::SafetensorsReader file(kReference + "gpt_tiny_init.safetensors");
  std::vector<Tensor> tensors;
  for (const auto& entry : file.entries()) {
    Tensor& tensor = tensors.emplace_back();
    tensor = {prefix + entry.name, entry.shape, std::vector<float>(static_cast<std::size_t>(entry.elements.value))};
    file.read(entry, tessera::Elements(0), entry.elements, tensor.values.data());
  }
  return tensors;
}

void write_weights(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<tessera::SafetensorsWriter::Tensor> headers;
  for (const Tensor& t : tensors) headers.push_back({t.name, tessera::DType::f32, t.shape});
  tessera::SafetensorsWriter writer(path, headers);
  for (const Tensor& t : tensors) writer.write(t.name, t.values.data(), tessera::Bytes(static_cast<std::int64_t>(4 * t.values.size())));
  writer.close();
}

TEST_CASE("weight file: sizes and values, with and without the transformer prefix") {
  const TemporaryFolder folder;
  const tessera::GptModel model = tessera::describe_gpt({.layers = 3, .heads = 4, .width = 48, .context = 32, .vocab = 256});
  for (const char* prefix : {"", "transformer."}) {
    const std::vector<Tensor> tensors = reference_weights(prefix);
    write_weights(folder / "w", tensors);
    const gpt::WeightFile file(folder / "w");
    CHECK(file.sizes().layers == 3);
    CHECK(file.sizes().width == 48);
    CHECK(file.sizes().context == 32);
    CHECK(file.sizes().vocab == 256);
    CHECK(file.notices().empty());
    for (const auto& unit : model.spec.units()) {
      for (const auto& tensor : unit.tensors) {
        const auto same = [&](const Tensor& t) { return t.name == prefix + tensor.name; };
        CHECK(filled(file.fill(), unit, tensor, 100) == std::find_if(tensors.begin(), tensors.end(), same)->values);
      }
    }
  }
}

TEST_CASE("weight file: mask buffers and an output matrix equal to wte are skipped with a notice, another output matrix is refused") {
  const TemporaryFolder folder;
  std::vector<Tensor> tensors = reference_weights("transformer.");
  tensors.push_back({"transformer.h.0.attn.bias", {1, 1, 32, 32}, std::vector<float>(1024, 1.0f)});
  tensors.push_back({"transformer.h.0.attn.masked_bias", {}, {-1e4f}});
  Tensor output = tensors.front();
  REQUIRE(output.name == "transformer.wte.weight");
  output.name = "lm_head.weight";
  tensors.push_back(output);
  write_weights(folder / "w", tensors);
  const gpt::WeightFile file(folder / "w");
  REQUIRE(file.notices().size() == 2);
  CHECK(file.notices()[0].find("lm_head.weight") != std::string::npos);
  CHECK(file.notices()[1].find("2 attention mask buffers") != std::string::npos);
  tensors.back().values.back() += 1.0f;
  write_weights(folder / "w", tensors);
  CHECK_THROWS_WITH_AS(gpt::WeightFile(folder / "w"), doctest::Contains("differs from wte.weight"), gpt::InputError);
  tensors.back() = {"adapter.weight", {1}, {1.0f}};
  write_weights(folder / "w", tensors);
  CHECK_THROWS_WITH_AS(gpt::WeightFile(folder / "w"), doctest::Contains("adapter.weight"), gpt::InputError);
}

TEST_CASE("batch: 8 or the next multiple of what a step takes, said where it is not 8") {
  for (const auto& [ranks, micro, batch] :
       std::vector<std::array<std::int64_t, 3>>{{1, 0, 8}, {2, 0, 8}, {3, 0, 9}, {7, 0, 14}, {16, 0, 16}, {1, 5, 10}, {3, 4, 12}}) {
    gpt::Config config;
    config.micro_batch = micro;
    std::vector<std::string> decisions;
    gpt::settle_batches(config, static_cast<int>(ranks), decisions);
    CHECK(config.batch == batch);
    CHECK(decisions.size() == (batch == 8 ? 0u : 1u));
    CHECK(config.micro_batch == (micro == 0 ? batch / ranks : micro));
  }
}

TEST_CASE("command line: what is given arrives, and flags_json tells it all") {
  const gpt::CommandLine line = parse({"--text", "t", "--lr", "0.02", "--freeze", "h.0.", "--freeze", "w", "--seed", "9", "--quiet",
                                       "--stage", "1", "--optimizer", "sgd", "--momentum", "0.5"});
  CHECK(line.error.empty());
  CHECK(line.config.freeze == std::vector<std::string>{"h.0.", "w"});
  CHECK(line.config.min_lr == doctest::Approx(0.002));
  CHECK(std::get<tessera::Sgd>(line.config.make_optimizer()).momentum == 0.5f);
  const auto values = nlohmann::json::parse(gpt::flags_json(line.config));
  CHECK(values["lr"] == 0.02);
  CHECK(values["freeze"].size() == 2);
  CHECK(values["quiet"] == true);
  CHECK(values["stage"] == 1);
  CHECK(values["text"] == "t");
  for (const char* name :
       {"tokens",  "order",    "layers",        "heads",    "width",  "context", "vocab",        "init",     "batch", "micro-batch",
        "steps",   "min-lr",   "warmup",        "beta1",    "beta2",  "eps",     "weight-decay", "momentum", "clip",  "transport",
        "threads", "prefetch", "memory-budget", "deadline", "on-nan", "export",  "sample",       "report",   "trace"}) {
    INFO(name);
    CHECK(values.contains(name));
  }
}

}  // namespace
