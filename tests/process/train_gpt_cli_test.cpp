// Bad input ends train_gpt before training: exit code 2 and one line that names the flag or file and the fix.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace {

using namespace tessera::testing;

const std::string kTrainGpt = std::string(TESSERA_BINARY_DIR) + "/examples/train_gpt";
const std::string kText = std::string(TESSERA_SOURCE_DIR) + "/LICENSE";
const std::string kInit = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/gpt_tiny_init.safetensors";

using Arguments = std::vector<std::string>;

// A small model on real text, then what makes it wrong.
Arguments small(const Arguments& extra) {
  Arguments all = {"--text", kText, "--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--steps", "2", "--batch", "12"};
  all.insert(all.end(), extra.begin(), extra.end());
  return all;
}

Outcome run(int ranks, const Arguments& arguments, bool mpi) {
  Arguments command = {kTrainGpt};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (mpi) return run_under_mpi(ranks, command);
  command.insert(command.end(), {"--threads", std::to_string(ranks)});
  return run_program(command);
}

void check_refused_once(int ranks, bool mpi, const Arguments& arguments, const Arguments& words) {
  const Outcome outcome = run(ranks, arguments, mpi);
  INFO(ranks << (mpi ? " processes: " : " threads: ") << outcome.err << outcome.out);
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  std::vector<std::string> ours = lines_of(outcome.err);
  if (mpi) {  // mpirun adds a paragraph of its own
    ours.erase(std::remove_if(ours.begin(), ours.end(), [](const std::string& line) { return line.rfind("train_gpt:", 0) != 0; }),
               ours.end());
  }
  REQUIRE(ours.size() == 1);
  CHECK(ours[0].rfind("train_gpt: ", 0) == 0);
  for (const std::string& word : words) {
    INFO("should say: " << word);
    CHECK(ours[0].find(word) != std::string::npos);
  }
}

void check_refused(const Arguments& arguments, const Arguments& words) {
  for (const int ranks : {1, 3}) check_refused_once(ranks, false, arguments, words);
}

std::string header_of(const std::string& json, const std::string& data) {
  std::uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + data;
}

TEST_CASE("bad input: a text that is missing, empty, a folder, or too short") {
  const TemporaryFolder folder;
  check_refused({"--steps", "1"}, {"--text", "--tokens"});
  check_refused({"--text", folder / "none.txt"}, {"--text", "none.txt", "No such file", "give"});
  write_file(folder / "empty.txt", "");
  check_refused({"--text", folder / "empty.txt"}, {"--text", "empty.txt", "is empty", "give"});
  write_file(folder / "short.txt", std::string(16, 'a'));
  check_refused(small({"--text", folder / "short.txt", "--context", "16"}), {"--text", "short.txt", "16 tokens", "17", "--context"});
  check_refused({"--text", "/"}, {"--text", "not a regular file"});
  check_refused(small({"--tokens", kText}), {"--text", "--tokens", "keep one"});
}

TEST_CASE("bad input: token ids not below the vocabulary, and half a token") {
  const TemporaryFolder folder;
  check_refused(small({"--vocab", "100"}), {"--text", "LICENSE", "not below the vocabulary 100", "--vocab"});
  std::string tokens(100'002, '\0');
  tokens[100'001] = 1;  // the last id is 256
  write_file(folder / "t.bin", tokens);
  check_refused({"--tokens", folder / "t.bin"}, {"--tokens", "t.bin", "token 50000 has id 256", "--vocab"});
  write_file(folder / "odd.bin", std::string(4'001, '\0'));
  check_refused({"--tokens", folder / "odd.bin"}, {"--tokens", "odd.bin", "4001 bytes", "odd"});
}

TEST_CASE("bad input: sizes that do not divide") {
  check_refused(small({"--heads", "3"}), {"--heads 3", "--width 8", "multiple"});
  for (const int ranks : {3, 4})
    check_refused_once(ranks, false, small({"--batch", "10"}), {"--batch 10", ranks == 3 ? "9 and 12" : "8 and 12"});
  check_refused_once(4, false, small({"--batch", "3"}), {"--batch 3", "nearest valid is 4"});
  check_refused_once(2, false, small({"--micro-batch", "5"}), {"--batch 12", "--micro-batch 5", "10 and 20"});
}

TEST_CASE("bad input: unknown flags and values that make no sense") {
  check_refused(small({"--precision", "bf16"}), {"--precision", "--help"});
  check_refused(small({"--resume"}), {"--resume", "--help"});
  check_refused(small({"--stesp", "3"}), {"--stesp", "--help"});
  check_refused(small({"stray"}), {"stray", "--help"});
  check_refused(small({"--steps"}), {"--steps"});
  check_refused(small({"--steps", "-3"}), {"--steps", "-3", "1 to"});
  check_refused(small({"--steps", "0"}), {"--steps", "1 to"});
  check_refused(small({"--steps", "many"}), {"--steps", "many", "whole number"});
  check_refused(small({"--steps", "1e3"}), {"--steps", "1e3", "whole number"});
  check_refused(small({"--steps", "99999999999999999999"}), {"--steps", "out of range"});
  check_refused(small({"--layers", "-1"}), {"--layers", "-1"});
  check_refused(small({"--batch", "-8"}), {"--batch", "-8"});
  check_refused(small({"--lr", "nan"}), {"--lr", "nan"});
  check_refused(small({"--lr", "-0.1"}), {"--lr", "-0.1"});
  check_refused(small({"--lr", "fast"}), {"--lr", "fast"});
  check_refused(small({"--stage", "4"}), {"--stage", "0 to 3"});
  check_refused(small({"--optimizer", "adamv"}), {"--optimizer", "adamv", "adamw"});
  check_refused(small({"--momentum", "0.9"}), {"--momentum", "sgd"});
  check_refused(small({"--warmup", "3"}), {"--warmup 3", "--steps 2"});
  check_refused(small({"--hang-rank", "7"}), {"--hang-rank 7"});
  check_refused_once(1, false, small({"--transport", "carrier-pigeon"}), {"--transport", "thread"});
}

TEST_CASE("bad input: an instruction set in the environment that this machine does not have") {
  struct Named {
    explicit Named(const char* isa) { ::setenv("TESSERA_ISA", isa, 1); }
    ~Named() { ::unsetenv("TESSERA_ISA"); }
  };
  {
    const Named bad("sse9");
    check_refused(small({}), {"TESSERA_ISA", "'sse9'", "baseline"});
#ifdef TESSERA_WITH_MPI
    check_refused_once(2, true, small({}), {"TESSERA_ISA", "'sse9'", "baseline"});
#endif
  }
  const Named good("baseline");
  CHECK(run(2, small({}), false).code == 0);
}

TEST_CASE("bad input: models no machine holds") {
  check_refused(small({"--layers", "10000", "--width", "65536"}), {"--layers 10000", "--width 65536", "lower"});
  check_refused(small({"--layers", "3000", "--width", "8192"}), {"--layers 3000", "lower"});
  check_refused({"--text", kText, "--context", "10000", "--width", "8192", "--batch", "999999"}, {"--context 10000", "lower"});
}

TEST_CASE("bad input: weights that are malformed, truncated, wrongly shaped, or another model's") {
  const TemporaryFolder folder;
  const std::string file = folder / "w.safetensors";
  const auto refused = [&](const std::string& bytes, const Arguments& words) {
    write_file(file, bytes);
    check_refused({"--text", kText, "--init", file, "--heads", "4"}, words);
  };
  check_refused({"--text", kText, "--init", folder / "none", "--heads", "4"}, {"--init", "none"});
  const std::string good = read_file(kInit);
  refused("", {"--init", "w.safetensors"});
  refused("this is not a file of weights", {"--init", "w.safetensors"});
  refused(good.substr(0, good.size() - 4), {"--init", "w.safetensors"});
  refused(good.substr(0, 3'000), {"--init", "w.safetensors"});
  refused(good + "more", {"--init", "w.safetensors"});
  refused(header_of("{]", ""), {"--init", "w.safetensors"});
  refused(header_of(R"({"other":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "0000"), {"--init", "wte.weight"});
  std::string reshaped = good;
  const std::string name = R"("h.1.mlp.c_fc.weight":{"dtype":"F32","shape":[48,192])";
  const std::size_t at = reshaped.find(name);
  REQUIRE(at != std::string::npos);
  reshaped.replace(at + name.size() - 8, 8, "[96,96] ");
  refused(reshaped, {"--init", "w.safetensors", "h.1.mlp.c_fc.weight", "[96, 96]", "[48, 192]"});
  std::string renamed = good;
  renamed.replace(renamed.find("h.2.ln_2.bias"), 13, "h.2.ln_9.bias");
  refused(renamed, {"--init", "h.2.ln_2.bias"});
  check_refused({"--text", kText, "--init", kInit}, {"--heads", "--init"});
  check_refused({"--text", kText, "--init", kInit, "--heads", "5"}, {"--heads 5", "48"});
  check_refused({"--text", kText, "--init", kInit, "--heads", "4", "--width", "64"}, {"--width 64", "48"});
}

TEST_CASE("bad input: files that cannot be written are found before training") {
  const TemporaryFolder folder;
  for (const char* flag : {"--report", "--export", "--trace"}) {
    check_refused(small({flag, folder / "no/such/folder/file"}), {flag, "no/such/folder", "give"});
    check_refused(small({flag, "/"}), {flag, "is a folder"});
  }
}

TEST_CASE("bad input: a memory budget too small says the smallest that would do, and that one does") {
  for (const int ranks : {1, 3}) {
    const Arguments arguments = small({"--memory-budget", "1000"});
    check_refused_once(ranks, false, arguments, {"--memory-budget 1000"});
    const std::string text = run(ranks, arguments, false).err;
    std::int64_t smallest = 0;
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] < '0' || text[i] > '9') {
        ++i;
        continue;
      }
      std::size_t used = 0;
      const std::int64_t number = std::stoll(text.substr(i), &used);
      i += used;
      smallest = std::max(smallest, number);
    }
    INFO(text);
    CHECK(run(ranks, small({"--quiet", "--memory-budget", std::to_string(smallest)}), false).code == 0);
    CHECK(run(ranks, small({"--quiet", "--memory-budget", std::to_string(smallest - 1)}), false).code == 2);
  }
}

TEST_CASE("bad input: a freeze prefix that matches nothing, or everything") {
  check_refused(small({"--freeze", "h.7."}), {"--freeze", "h.7.", "names are"});
  check_refused(small({"--freeze", "w", "--freeze", "h.", "--freeze", "transformer.ln_f"}), {"--freeze", "every tensor"});
}

#ifdef TESSERA_WITH_MPI
TEST_CASE("bad input: under mpirun too, one line, and no rank hangs") {
  const TemporaryFolder folder;
  write_file(folder / "odd.bin", std::string(4'001, '\0'));
  check_refused_once(2, true, small({"--steps", "-3"}), {"--steps", "-3"});
  check_refused_once(3, true, small({"--batch", "10"}), {"--batch 10", "9 and 12"});
  check_refused_once(2, true, {"--tokens", folder / "odd.bin"}, {"--tokens", "odd.bin"});
  check_refused_once(2, true, small({"--report", "/no/such/folder/r.json"}), {"--report", "give"});
  check_refused_once(2, true, small({"--memory-budget", "1000"}), {"--memory-budget"});
  check_refused_once(2, true, small({"--transport", "thread"}), {"--transport thread", "mpirun"});
}

TEST_CASE("bad input: seen by one rank alone, it ends all ranks alike") {
  const TemporaryFolder folder;
  // Each rank opens a file named after its rank; only rank 1's is damaged.
  write_file(folder / "0.bin", std::string(4'000, '\0'));
  write_file(folder / "1.bin", std::string(4'001, '\0'));
  write_file(folder / "rank.sh",
             "cd '" + (folder / "") +
                 "'; ln -sf $OMPI_COMM_WORLD_RANK.bin $OMPI_COMM_WORLD_RANK.link; mkdir -p d$OMPI_COMM_WORLD_RANK;"
                 " cp $OMPI_COMM_WORLD_RANK.bin d$OMPI_COMM_WORLD_RANK/t.bin; cd d$OMPI_COMM_WORLD_RANK; exec \"$@\"\n");
  const Outcome outcome = run_under_mpi(2, {"bash", folder / "rank.sh", kTrainGpt, "--tokens", "t.bin", "--context", "8", "--steps", "1"});
  INFO(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("train_gpt: --tokens t.bin: has 4001 bytes") != std::string::npos);
  write_file(folder / "1.bin", std::string(3'000, '\0'));
  const Outcome other = run_under_mpi(2, {"bash", folder / "rank.sh", kTrainGpt, "--tokens", "t.bin", "--context", "8", "--steps", "1"});
  INFO(other.err);
  CHECK(other.code == 2);
  CHECK(other.err.find("same file on all ranks") != std::string::npos);
}
#endif

TEST_CASE("command line: --help and --version answer and train nothing") {
  const Outcome help = run_program({kTrainGpt, "--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("--memory-budget") != std::string::npos);
  const Outcome version = run_program({kTrainGpt, "--version"});
  CHECK(version.code == 0);
  CHECK(version.out.rfind("train_gpt 0.", 0) == 0);
  CHECK(lines_of(version.out).size() == 1);
}

}  // namespace
