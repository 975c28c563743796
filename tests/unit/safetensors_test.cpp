#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "shard/safetensors_header.h"
#include "tessera/error.h"
#include "tessera/half.h"
#include "tessera/safetensors.h"

using namespace tessera;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tessera_safetensors_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(path_)) result.push_back(entry.path().filename().string());
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  fs::path path_;
};

std::string image(const std::string& header, std::size_t data_bytes) {
  std::string result;
  for (int i = 0; i < 8; ++i) result += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i) & 0xffu);
  return result + header + std::string(data_bytes, '\1');
}

void put(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  REQUIRE(file);
}

std::string get(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// What the reader says of a file with this content; empty where it takes it.
std::string fault_of(const std::string& content) {
  const Folder folder;
  const std::string path = folder.file("weights.safetensors");
  put(path, content);
  try {
    const SafetensorsReader reader(path);
    return {};
  } catch (const CheckpointError& e) {
    CHECK(e.path == path);
    CHECK(std::string(e.what()).find(path) == 0);
    return e.what();
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kF32Pair = R"("dtype":"F32","shape":[2],"data_offsets":)";

/// Files cannot grow beyond `bytes` in this process while it lives: writes come back short, then fail.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

}  // namespace

TEST_CASE("safetensors: what is written comes back, in parts, for every dtype that reads as float") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const std::vector<float> f32 = {1.5f, -0.0f, 1e-45f, 3.0e38f, std::numeric_limits<float>::infinity()};
  const std::array<bf16, 3> b = {bf16(1.0f), bf16(-3.140625f), bf16(1e30f)};
  const std::array<f16, 2> h = {f16(0.5f), f16(65504.0f)};
  const std::array<double, 2> d = {0.1, -1e300};
  {
    SafetensorsWriter writer(path, {{"b", DType::bf16, {3}},
                                    {"none", DType::f32, {0, 4}},
                                    {"f", DType::f32, {5, 1}},
                                    {"h", DType::f16, {2}},
                                    {"d", DType::f64, {2}},
                                    {"byte", DType::u8, {1}},
                                    {"scalar", DType::f32, {}}});
    writer.write("b", b.data(), Bytes(6));
    writer.write("f", f32.data(), Bytes(8));
    writer.write("f", f32.data() + 2, Bytes(12));
    writer.write("h", h.data(), Bytes(4));
    writer.write("d", d.data(), Bytes(16));
    writer.write("byte", "x", Bytes(1));
    writer.write("scalar", f32.data(), Bytes(4));
    writer.close();
  }
  const SafetensorsReader reader(path);
  CHECK(reader.entries().size() == 7);
  CHECK(reader.find("absent") == nullptr);
  for (const SafetensorsEntry& e : reader.entries()) {
    CHECK(reader.find(e.name) == &e);
    CHECK(e.offset % static_cast<std::uint64_t>(size_of(e.dtype)) == 0);  // aligned, odd sizes before it or not
  }
  const auto read = [&](const std::string& name, std::int64_t begin, std::int64_t count) {
    const SafetensorsEntry* e = reader.find(name);
    REQUIRE(e != nullptr);
    std::vector<float> out(static_cast<std::size_t>(count), -7.0f);
    reader.read(*e, Elements(begin), Elements(count), out.data());
    return out;
  };
  CHECK(reader.find("f")->shape == std::vector<std::int64_t>{5, 1});
  CHECK(reader.find("none")->shape == std::vector<std::int64_t>{0, 4});
  CHECK(reader.find("scalar")->shape.empty());
  CHECK(read("f", 0, 5) == f32);
  CHECK(std::signbit(read("f", 1, 1)[0]));
  CHECK(read("f", 2, 2) == std::vector<float>{1e-45f, 3.0e38f});
  CHECK(read("f", 5, 0).empty());
  CHECK(read("none", 0, 0).empty());
  CHECK(read("b", 1, 2) == std::vector<float>{-3.140625f, static_cast<float>(b[2])});
  CHECK(read("h", 0, 2) == std::vector<float>{0.5f, 65504.0f});
  CHECK(read("d", 0, 1) == std::vector<float>{0.1f});
  CHECK(read("d", 1, 1) == std::vector<float>{-std::numeric_limits<float>::infinity()});
  CHECK(read("scalar", 0, 1) == std::vector<float>{1.5f});
  CHECK(folder.names() == std::vector<std::string>{"a.safetensors"});
}

TEST_CASE("safetensors: a range longer than the conversion buffer comes back whole") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  std::vector<bf16> values;
  for (int i = 0; i < 10001; ++i) values.emplace_back(static_cast<float>(i % 251));
  SafetensorsWriter writer(path, {{"w", DType::bf16, {10001}}});
  writer.write("w", values.data(), Bytes(2 * 10001));
  writer.close();
  const SafetensorsReader reader(path);
  std::vector<float> out(9999);
  reader.read(reader.entries()[0], Elements(2), Elements(9999), out.data());
  bool equal = true;
  for (std::size_t i = 0; i < out.size(); ++i) equal = equal && out[i] == static_cast<float>((i + 2) % 251);
  CHECK(equal);
}

TEST_CASE("safetensors: ranges outside a tensor and types that are no floats are refused") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  SafetensorsWriter writer(path, {{"i", DType::i64, {1}}, {"u", DType::u8, {3}}, {"f", DType::f32, {2}}});
  const std::array<char, 8> zeros{};
  writer.write("i", zeros.data(), Bytes(8));
  writer.write("u", zeros.data(), Bytes(3));
  writer.write("f", zeros.data(), Bytes(8));
  writer.close();
  const SafetensorsReader reader(path);
  float out[4] = {};
  CHECK_THROWS_AS(reader.read(*reader.find("i"), Elements(0), Elements(1), out), UsageError);
  CHECK_THROWS_AS(reader.read(*reader.find("u"), Elements(0), Elements(1), out), UsageError);
  CHECK_THROWS_AS(reader.read(*reader.find("f"), Elements(-1), Elements(1), out), UsageError);
  CHECK_THROWS_AS(reader.read(*reader.find("f"), Elements(0), Elements(3), out), UsageError);
  CHECK_THROWS_AS(reader.read(*reader.find("f"), Elements(3), Elements(0), out), UsageError);
  CHECK_THROWS_AS(reader.read(*reader.find("f"), Elements(1), Elements(INT64_MAX), out), UsageError);
}

TEST_CASE("safetensors: well-formed files are taken: any order, spaces behind, metadata, empty tensors, no tensors (B42)") {
  CHECK(fault_of(image("{}", 0)).empty());
  CHECK(fault_of(image("{}     ", 0)).empty());
  CHECK(fault_of(image(R"({"__metadata__":{"format":"pt","a":""}})", 0)).empty());
  CHECK(fault_of(image("{\"b\":{" + kF32Pair + "[8,16]},\"a\":{" + kF32Pair + "[0,8]}}", 16)).empty());
  CHECK(fault_of(image("{\"b\":{" + kF32Pair + R"([0,8]},"e":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},)" +
                           R"("d":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})",
                       9))
            .empty());
  CHECK(fault_of(image(R"({"\u00fc \"x\"":{"shape":[1],"data_offsets":[0,8],"dtype":"I64"}})", 8)).empty());
}

TEST_CASE("safetensors: every malformed file is refused with the path and the fault (B42)") {
  struct Case {
    std::string content;
    std::string fault;
  };
  const auto one = [](const std::string& body, std::size_t data = 8) { return image("{\"a\":{" + body + "}}", data); };
  const auto two = [](const std::string& a, const std::string& b, std::size_t data) {
    return image("{\"a\":{" + kF32Pair + a + "},\"b\":{" + kF32Pair + b + "}}", data);
  };
  const std::vector<Case> cases = {
      // the length in front
      {"", "fewer than the header's length"},
      {"1234567", "fewer than the header's length"},
      {image("{}", 0).substr(0, 9), "but only 1 follow; it was cut off"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}", "100000001 bytes; at most 100000000"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}", "at most 100000000"},
      // the text
      {image("", 0), "does not start with '{'"},
      {image(" {}", 0), "does not start with '{'"},
      {image("\xef\xbb\xbf{}", 0), "does not start with '{'"},
      {image("[]", 0), "does not start with '{'"},
      {image("3", 0), "does not start with '{'"},
      {image("{", 0), "not JSON at byte"},
      {image("{} x", 0), "not JSON at byte"},
      {image("{}{}", 0), "not JSON at byte"},
      {image("{} // comment", 0), "not JSON at byte"},
      {image(std::string("{}\0", 3), 0), "NUL at byte 2"},
      {image(std::string("{\"a\0\":1}", 8), 0), "NUL at byte 3"},
      {image("{\"\xff\":{}}", 0), "not JSON at byte"},
      // the grammar
      {image(R"({"a":1})", 0), "'a' is 1, not an object"},
      {image(R"({"a":null})", 0), "'a' is null, not an object"},
      {image(R"({"a":[]})", 0), "'a' is an array, not an object"},
      {image(R"({"a":"x"})", 0), "'a' is \"x\", not an object"},
      {image(R"({"__metadata__":{"n":1}})", 0), "__metadata__ holds 1; it may hold strings only"},
      {image(R"({"__metadata__":{"n":{}}})", 0), "__metadata__ holds an object"},
      {image(R"({"__metadata__":[]})", 0), "'__metadata__' is an array"},
      {one(R"("shape":[2],"data_offsets":[0,8])"), "tensor 'a' lacks dtype"},
      {one(R"("dtype":"F32","data_offsets":[0,8])"), "tensor 'a' lacks shape"},
      {one(R"("dtype":"F32","shape":[2])"), "tensor 'a' lacks data_offsets"},
      {one(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), "tensor 'a': dtype is 4"},
      {one(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"), "tensor 'a': dtype is an array"},
      {one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "tensor 'a': shape is 2"},
      {one(R"("dtype":"F32","shape":"2","data_offsets":[0,8])"), "tensor 'a': shape is \"2\""},
      {one(R"("dtype":"F32","shape":{},"data_offsets":[0,8])"), "tensor 'a': shape is an object"},
      {one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "tensor 'a': shape holds an array"},
      {one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "tensor 'a': shape holds 2.0, not a whole number"},
      {one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "tensor 'a': shape holds -2, not a whole number"},
      {one(R"("dtype":"F32","shape":[true],"data_offsets":[0,8])"), "tensor 'a': shape holds a truth value"},
      {one(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), "tensor 'a': shape holds \"2\""},
      {one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"), "shape holds 99999999999999999999"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1)"), "tensor 'a' has 'extra', which the format does not know"},
      // names twice
      {two("[0,8]", "[8,16]},\"a\":{" + kF32Pair + "[16,24]", 24), "the name 'a' occurs twice"},
      {two("[0,8]", "[8,16]},\"\\u0061\":{" + kF32Pair + "[16,24]", 24), "the name 'a' occurs twice"},
      {image(R"({"__metadata__":{},"__metadata__":{}})", 0), "the name '__metadata__' occurs twice"},
      {image(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "__metadata__ has 'k' twice"},
      {one(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), "tensor 'a' has 'dtype' twice"},
      {one(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"), "tensor 'a' has 'shape' twice"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8])"), "tensor 'a' has 'data_offsets' twice"},
      // one tensor by itself
      {one(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"), "tensor 'a' has dtype 'F8_E4M3'; this library holds"},
      {one(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), "tensor 'a' has dtype 'f32'"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8])"), "tensor 'a' has 1 data_offsets, not 2"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), "tensor 'a' has 3 data_offsets, not 2"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "data_offsets [8, 0], which run backwards"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 7), "out of range: the file holds 7 bytes"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615])"), "out of range"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "take 12 bytes, but data_offsets [0, 8] of 8 bytes"},
      {one(R"("dtype":"BF16","shape":[2],"data_offsets":[0,8])"), "take 4 bytes, but data_offsets [0, 8] of 8 bytes"},
      {one(R"("dtype":"F32","shape":[0],"data_offsets":[0,8])"), "take 0 bytes"},
      {one(R"("dtype":"F32","shape":[],"data_offsets":[0,8])"), "take 4 bytes"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), "more than 2^58 elements"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967298],"data_offsets":[0,8])"), "more than 2^58 elements"},
      {one(R"("dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8])"), "more than 2^58 elements"},
      {one(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0), "more than 2^58 elements"},
      // tensors together
      {two("[0,8]", "[9,17]", 17), "bytes [8, 9) before tensor 'b' belong to no tensor"},
      {two("[4,12]", "[12,20]", 20), "bytes [0, 4) before tensor 'a' belong to no tensor"},
      {two("[0,8]", "[7,15]", 15), "tensor 'b' at 7 overlaps the one before it, which ends at 8"},
      {two("[0,8]", "[0,8]", 8), "tensor 'b' at 0 overlaps"},
      {two("[0,8]", "[8,16]", 17), "1 trailing bytes"},
      {image("{}", 1), "1 trailing bytes"},
      {one(R"("dtype":"F32","shape":[0],"data_offsets":[4,4])", 4), "bytes [0, 4) before tensor 'a'"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.content);
    const std::string fault = fault_of(c.content);
    CAPTURE(fault);
    CHECK(has(fault, c.fault));
  }
}

TEST_CASE("safetensors: a file cut anywhere is refused (B42)") {
  const std::string whole = image("{\"a\":{" + kF32Pair + "[0,8]},\"b\":{" + kF32Pair + "[8,16]}}", 16);
  REQUIRE(fault_of(whole).empty());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    CAPTURE(n);
    CHECK_FALSE(fault_of(whole.substr(0, n)).empty());
  }
}

TEST_CASE("safetensors: nesting a million deep is refused without exhausting the stack (B42)") {
  CHECK(has(fault_of(image("{\"a\":" + std::string(1'000'000, '['), 0)), "'a' is an array"));
  CHECK(has(fault_of(image("{\"a\":{\"shape\":[" + std::string(1'000'000, '['), 0)), "shape holds an array"));
}

TEST_CASE("safetensors: a path that is missing, a folder or a pipe is an error that names it") {
  const Folder folder;
  const std::string missing = folder.file("missing");
  CHECK_THROWS_WITH_AS(SafetensorsReader{missing}, (missing + ": opening to read failed: No such file or directory").c_str(),
                       CheckpointError);
  CHECK_THROWS_AS(SafetensorsReader{folder.file("")}, CheckpointError);
  const std::string pipe = folder.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_AS(SafetensorsReader{pipe}, CheckpointError);  // at once, without waiting for a writer
}

TEST_CASE("safetensors: a file that shrinks after it was opened is an error, not old memory") {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, image("{\"a\":{" + kF32Pair + "[0,8]}}", 8));
  const SafetensorsReader reader(path);
  fs::resize_file(path, fs::file_size(path) - 2);
  float out[2] = {};
  CHECK_NOTHROW(reader.read(reader.entries()[0], Elements(0), Elements(1), out));
  CHECK_THROWS_AS(reader.read(reader.entries()[0], Elements(0), Elements(2), out), CheckpointError);
}

TEST_CASE("safetensors: a moved reader goes on reading") {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, image("{\"a\":{" + kF32Pair + "[0,8]}}", 8));
  SafetensorsReader first(path);
  const SafetensorsReader second(std::move(first));
  float out[2] = {};
  second.read(second.entries()[0], Elements(0), Elements(2), out);
  CHECK(out[0] == out[1]);
}

TEST_CASE("safetensors: the writer leaves nothing behind without close, and an older file as it was (B35)") {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, "older");
  {
    SafetensorsWriter writer(path, {{"w", DType::f32, {1}}});
    const float x = 1.0f;
    writer.write("w", &x, Bytes(4));
    CHECK(get(path) == "older");
    CHECK(folder.names().size() == 2);
  }
  CHECK(folder.names() == std::vector<std::string>{"a"});
  CHECK(get(path) == "older");
}

TEST_CASE("safetensors: close replaces an older file, and two writers of one path do not meet") {
  const Folder folder;
  const std::string path = folder.file("a");
  const std::array<float, 2> x = {1.0f, 2.0f};
  SafetensorsWriter first(path, {{"w", DType::f32, {1}}});
  SafetensorsWriter second(path, {{"w", DType::f32, {2}}});
  first.write("w", x.data(), Bytes(4));
  second.write("w", x.data(), Bytes(8));
  first.close();
  CHECK(SafetensorsReader(path).entries()[0].elements == Elements(1));
  second.close();
  CHECK(SafetensorsReader(path).entries()[0].elements == Elements(2));
  CHECK(folder.names() == std::vector<std::string>{"a"});
}

TEST_CASE("safetensors: the file's permissions follow the umask") {
  const Folder folder;
  const std::string path = folder.file("a");
  const mode_t before = ::umask(0027);
  SafetensorsWriter writer(path, {});
  writer.close();
  ::umask(before);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
}

TEST_CASE("safetensors: equal tensors give equal files, without time or path in them") {
  const Folder folder;
  const float x = 1.0f;
  for (const std::string name : {"a", "longer_name"}) {
    SafetensorsWriter writer(folder.file(name), {{"w", DType::f32, {1}}});
    writer.write("w", &x, Bytes(4));
    writer.close();
  }
  const std::string content = get(folder.file("a"));
  CHECK(content == get(folder.file("longer_name")));
  CHECK(content == image(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  )", 0) + std::string("\0\0\x80\x3f", 4));
}

TEST_CASE("safetensors: tensors written in another order, size or number than announced are refused") {
  const Folder folder;
  const std::array<float, 4> x{};
  SafetensorsWriter writer(folder.file("a"), {{"first", DType::f32, {2}}, {"empty", DType::f32, {0}}, {"last", DType::f32, {1}}});
  CHECK_THROWS_AS(writer.write("last", x.data(), Bytes(4)), UsageError);
  CHECK_THROWS_AS(writer.write("first", x.data(), Bytes(9)), UsageError);
  CHECK_THROWS_AS(writer.write("first", x.data(), Bytes(-1)), UsageError);
  CHECK_THROWS_AS(writer.close(), UsageError);
  writer.write("first", x.data(), Bytes(4));
  CHECK_THROWS_AS(writer.write("last", x.data(), Bytes(4)), UsageError);
  CHECK_THROWS_AS(writer.close(), UsageError);
  writer.write("first", x.data(), Bytes(4));
  CHECK_THROWS_AS(writer.write("first", x.data(), Bytes(1)), UsageError);
  writer.write("empty", nullptr, Bytes(0));
  CHECK_THROWS_AS(writer.write("unknown", x.data(), Bytes(4)), UsageError);
  writer.write("last", x.data(), Bytes(4));
  CHECK_THROWS_AS(writer.write("more", x.data(), Bytes(4)), UsageError);
  writer.close();
  CHECK_THROWS_AS(writer.close(), UsageError);
  CHECK_THROWS_AS(writer.write("last", x.data(), Bytes(0)), UsageError);
  CHECK(SafetensorsReader(folder.file("a")).entries().size() == 3);
}

TEST_CASE("safetensors: announcements that no reader would take are refused before anything is written (B42)") {
  const Folder folder;
  const auto announce = [&](std::vector<SafetensorsWriter::Tensor> tensors) { SafetensorsWriter(folder.file("a"), std::move(tensors)); };
  CHECK_THROWS_AS(announce({{"w", DType::f32, {1}}, {"w", DType::f32, {1}}}), UsageError);
  CHECK_THROWS_AS(announce({{"__metadata__", DType::f32, {1}}}), UsageError);
  CHECK_THROWS_AS(announce({{"w", DType::f32, {-1}}}), UsageError);
  CHECK_THROWS_AS(announce({{"w", DType::f32, {INT64_MAX, 2}}}), UsageError);
  CHECK_THROWS_AS(announce({{"v", DType::u8, {std::int64_t{1} << 58}}, {"w", DType::u8, {1}}}), UsageError);
  CHECK_THROWS_AS(announce({{"\xff", DType::f32, {1}}}), UsageError);
  CHECK_THROWS_AS(announce({{std::string(100'000'000, 'x'), DType::f32, {1}}}), UsageError);
  CHECK(folder.names().empty());
}

TEST_CASE("safetensors: a name with quotes, newlines and umlauts comes back") {
  const Folder folder;
  const std::string name = "a\"b\\c\n\t\x01 \xc3\xbc";
  SafetensorsWriter writer(folder.file("a"), {{name, DType::u8, {1}}});
  writer.write(name, "x", Bytes(1));
  writer.close();
  CHECK(SafetensorsReader(folder.file("a")).entries()[0].name == name);
}

TEST_CASE("safetensors: a short write is an error with path, offset and cause, and nothing is left behind (B41)") {
  const Folder folder;
  const std::string path = folder.file("a");
  put(path, "older");
  const std::vector<float> x(4096, 1.0f);
  std::string fault;
  {
    SafetensorsWriter writer(path, {{"w", DType::f32, {8192}}});
    writer.write("w", x.data(), Bytes(4 * 4096));
    const FileSizeLimit limit(20'000);
    try {
      writer.write("w", x.data(), Bytes(4 * 4096));
    } catch (const CheckpointError& e) {
      fault = e.what();
      CHECK(e.path == path);
    }
  }
  CHECK(has(fault, path));
  CHECK(has(fault, "at offset 20000"));
  CHECK(has(fault, "File too large"));
  CHECK(folder.names() == std::vector<std::string>{"a"});
  CHECK(get(path) == "older");
}

TEST_CASE("safetensors: when even the header cannot be written nothing is left behind (B41)") {
  const Folder folder;
  const FileSizeLimit limit(10);
  CHECK_THROWS_AS(SafetensorsWriter(folder.file("a"), {{"w", DType::f32, {1}}}), CheckpointError);
  CHECK(folder.names().empty());
}

TEST_CASE("safetensors: a folder that is missing or a name that is a folder is an error that names the path (B41)") {
  const Folder folder;
  const std::string path = folder.file("no/such/a");
  try {
    SafetensorsWriter writer(path, {});
    FAIL("no error");
  } catch (const CheckpointError& e) {
    CHECK(e.path == path);
    CHECK(has(e.what(), "No such file or directory"));
  }
  const std::string taken = folder.file("taken");
  fs::create_directories(taken + "/inside");
  SafetensorsWriter writer(taken, {});
  CHECK_THROWS_AS(writer.close(), CheckpointError);
}

TEST_CASE("safetensors: more than 2^32 bytes are laid out right (B7)") {
  const auto plan =
      shard::plan_safetensors({{"small", DType::u8, {3}}, {"large", DType::f32, {1 << 20, 1 << 20}}, {"next", DType::f32, {5}}});
  const std::uint64_t data = plan.prefix.size();
  CHECK(plan.offsets[1] == data);
  CHECK(plan.offsets[2] == data + (std::uint64_t{1} << 42));
  CHECK(plan.offsets[0] == data + (std::uint64_t{1} << 42) + 20);
  CHECK(plan.file_bytes == plan.offsets[0] + 3);
  const auto entries = shard::parse_safetensors_header(plan.prefix.substr(8), plan.file_bytes - data, "planned");
  REQUIRE(entries.size() == 3);
  CHECK(entries[0].elements == Elements(std::int64_t{1} << 40));
  CHECK(entries[2].name == "small");
  CHECK(entries[2].offset == plan.offsets[0]);
}
