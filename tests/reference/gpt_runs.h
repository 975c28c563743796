// Runs of train_gpt on the reference's weights and tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/program.h"

namespace tessera::testing {

enum class Ranks { threads, node, mpi };

inline const char* name_of(Ranks kind) { return kind == Ranks::threads ? "thread" : kind == Ranks::node ? "node" : "mpi"; }

inline const std::string kReference = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/";

/// Arguments of the reference's runs, without --micro-batch, --stage and files to write.
inline std::vector<std::string> reference_arguments() {
  return {"--init",         kReference + "gpt_tiny_init.safetensors",
          "--heads",        "4",
          "--tokens",       kReference + "gpt_tiny_tokens.bin",
          "--order",        "sequential",
          "--batch",        "8",
          "--steps",        "40",
          "--lr",           "3e-3",
          "--min-lr",       "3e-4",
          "--warmup",       "5",
          "--weight-decay", "0.1",
          "--beta1",        "0.9",
          "--beta2",        "0.95",
          "--deadline",     "30",
          "--quiet"};
}

inline Outcome train_gpt(Ranks kind, int ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::string(TESSERA_BINARY_DIR) + "/examples/train_gpt");
  arguments.insert(arguments.end(), {"--transport", name_of(kind)});
  if (kind != Ranks::threads) return run_under_mpi(ranks, arguments);
  arguments.insert(arguments.end(), {"--threads", std::to_string(ranks)});
  return run_program(arguments);
}

inline nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_file(path)); }

}  // namespace tessera::testing
