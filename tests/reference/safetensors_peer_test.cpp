// Against the reference implementation of safetensors, where its Python package is installed: the build looks and sets TESSERA_PYTHON.
#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/half.h"
#include "tessera/safetensors.h"

using namespace tessera;

namespace {

bool package_missing() { return std::getenv("TESSERA_PYTHON") == nullptr; }

/// What the script prints; the test fails where the script does.
std::string run_peer(const std::string& verb, const std::string& path) {
  const std::string command =
      std::string(std::getenv("TESSERA_PYTHON")) + " " TESSERA_SOURCE_DIR "/tests/reference/safetensors_peer.py " + verb + " " + path;
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), static_cast<int>(part.size()), pipe) != nullptr) output += part.data();
  REQUIRE(::pclose(pipe) == 0);
  return output;
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("tessera_peer_" + std::to_string(::getpid()) + name)).string();
}

}  // namespace

TEST_CASE("safetensors: the reference reader opens the writer's files and finds the same tensors (B42)" *
          doctest::skip(package_missing())) {
  const std::string path = temporary("_ours");
  {
    SafetensorsWriter writer(path, {{"u", DType::u8, {3}},
                                    {"b", DType::bf16, {2}},
                                    {"none", DType::f32, {0, 4}},
                                    {"f", DType::f32, {2, 1}},
                                    {"i", DType::i64, {}},
                                    {"\xc3\xbc \"q\"", DType::f16, {1}},
                                    {"d", DType::f64, {1}}});
    const std::array<bf16, 2> b = {bf16(1.0f), bf16(-2.0f)};
    const std::array<float, 2> f = {1.0f, 0.5f};
    const std::int64_t i = 258;
    const f16 h(1.0f);
    const double d = 1.0;
    writer.write("u", "abc", Bytes(3));
    writer.write("b", b.data(), Bytes(4));
    writer.write("f", f.data(), Bytes(8));
    writer.write("i", &i, Bytes(8));
    writer.write("\xc3\xbc \"q\"", &h, Bytes(2));
    writer.write("d", &d, Bytes(8));
    writer.close();
  }
  CHECK(run_peer("read", path) ==
        "b BF16 [2] 803f00c0\n"
        "d F64 [1] 000000000000f03f\n"
        "f F32 [2, 1] 0000803f0000003f\n"
        "i I64 [] 0201000000000000\n"
        "none F32 [0, 4] \n"
        "u U8 [3] 616263\n"
        "\xc3\xbc \"q\" F16 [1] 003c\n");
  std::filesystem::remove(path);
}

TEST_CASE("safetensors: the reader opens the reference writer's files and finds the same values (B42)" * doctest::skip(package_missing())) {
  const std::string path = temporary("_theirs");
  run_peer("write", path);
  {
    const SafetensorsReader reader(path);
    CHECK(reader.entries().size() == 6);
    const auto read = [&](const std::string& name) {
      const SafetensorsEntry* entry = reader.find(name);
      REQUIRE(entry != nullptr);
      std::vector<float> out(static_cast<std::size_t>(entry->elements.value));
      reader.read(*entry, Elements(0), entry->elements, out.data());
      return out;
    };
    CHECK(read("f") == std::vector<float>{0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.25f});
    CHECK(reader.find("f")->shape == std::vector<std::int64_t>{2, 3});
    CHECK(read("h") == std::vector<float>{0.5f, -2.0f});
    CHECK(read("d") == std::vector<float>{1e-3f});
    CHECK(read("none").empty());
    CHECK(read("scalar") == std::vector<float>{7.0f});
    CHECK(reader.find("u")->dtype == DType::u8);
  }
  std::filesystem::remove(path);
}
