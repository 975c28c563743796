#include "examples/gpt/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "examples/gpt/flags.h"
#include "tessera/version.h"

namespace gpt {
namespace {

constexpr const char* kProgram = "train_gpt";
constexpr std::int64_t kMost = 1'000'000'000;

void declare_flags(FlagTable& flags, Config& c) {
  flags.text("--text", c.text, "file to train on, bytes as token ids; this or --tokens");
  flags.text("--tokens", c.tokens, "file of little-endian uint16 token ids, the format of nanoGPT's .bin");
  flags.choice("--order", c.order, "sequential: sample b of step s starts at token (s*batch + b)*context; [random]",
               {"random", "sequential"});
  flags.whole("--layers", c.model.layers, "transformer blocks [4]", {1, 10'000});
  flags.whole("--heads", c.model.heads, "attention heads, a divisor of the width [4]", {1, 65'536});
  flags.whole("--width", c.model.width, "elements of the residual stream [128]", {1, 65'536});
  flags.whole("--context", c.model.context, "tokens of a sequence [128]", {1, 1'000'000});
  flags.whole("--vocab", c.model.vocab, "token ids [256]", {1, 1'000'000});
  flags.text("--init", c.init, "start from a .safetensors with GPT-2's names; sizes come from it, --heads must be given");
  flags.whole("--batch", c.batch, "sequences per step, all ranks together [8, or the next multiple of the ranks]", {1, 1'000'000});
  flags.whole("--micro-batch", c.micro_batch, "sequences per forward on one rank [batch / ranks]", {1, 1'000'000});
  flags.whole("--steps", c.steps, "steps in all [100]", {1, kMost});
  flags.whole("--seed", c.seed, "of initial weights, random order and samples [1]", {0, std::numeric_limits<std::int64_t>::max()});
  flags.real("--lr", c.lr, "learning rate after warm-up [1e-3]", {0.0, 1e6});
  flags.real("--min-lr", c.min_lr, "learning rate at the end [lr/10]", {0.0, 1e6});
  flags.whole("--warmup", c.warmup, "steps of linear warm-up [0]", {0, kMost});
  flags.choice("--optimizer", c.optimizer, "[adamw]", {"adamw", "adam", "sgd", "adagrad", "lion"});
  flags.real("--beta1", c.beta1, "of adamw, adam, lion [0.9]", {0.0, 1.0});
  flags.real("--beta2", c.beta2, "of adamw, adam, lion [0.95]", {0.0, 1.0});
  flags.real("--eps", c.eps, "of adamw, adam, adagrad [1e-8]", {0.0, 1.0});
  flags.real("--weight-decay", c.weight_decay, "on tensors of two or more dimensions; added to the gradient by adam, sgd, adagrad [0.1]",
             {0.0, 1e6});
  flags.real("--momentum", c.momentum, "of sgd [0]", {0.0, 1.0});
  flags.real("--clip", c.clip, "largest global gradient norm, 0 is off [1]", {0.0, 1e30});
  flags.list("--freeze", c.freeze, "freeze the tensors whose name starts so; may be repeated");
  flags.whole("--stage", c.stage, "what is sharded: 0 nothing, 1 moments, 2 and gradients, 3 and parameters [3]", {0, 3});
  flags.choice("--transport", c.transport, "[auto: under a launcher node on one host, hierarchical or mpi on several; else thread]",
               {"auto", "thread", "node", "mpi", "hierarchical"});
  flags.choice("--reduction", c.reduction,
               "order of sums: leaf has the bits of one rank, topology is for hierarchical and sends less [auto: its own]",
               {"auto", "leaf", "topology"});
  flags.whole("--threads", c.threads, "thread transport: ranks inside this process [1]", {1, 1024});
  flags.whole("--prefetch", c.prefetch, "units gathered ahead of the compute [1]", {0, 64});
  flags.whole("--memory-budget", c.memory_budget, "most bytes of training state per rank, 0 is no limit [0]", {0, std::int64_t{1} << 58});
  flags.real("--deadline", c.deadline, "seconds until a missing rank is an error [60]", {0.001, 1e6});
  flags.choice("--on-nan", c.on_nan, "what a NaN in the gradient does: end the run, or skip the step [stop]", {"stop", "continue"});
  flags.text("--export", c.export_path, "write the full weights to this .safetensors at the end");
  flags.whole("--sample", c.sample, "tokens of text to generate at the end [0]", {0, 1'000'000});
  flags.text("--report", c.report, "write a JSON report to this file");
  flags.text("--trace", c.trace, "write a trace in Chrome's format to this file");
  flags.on("--quiet", c.quiet, "print nothing but errors and the sample");
  flags.whole("--hang-rank", c.hang_rank, "debugging: this rank prints its process id and waits for a debugger [-1]", {-1, 1'000'000});
}

struct OnlyFor {
  const char* flag;
  std::vector<std::string> optimizers;
};

std::string check_together(const FlagTable& flags, const Config& c) {
  if (c.text.empty() == c.tokens.empty()) {
    return c.text.empty() ? "--text FILE or --tokens FILE is needed: there is nothing to train on"
                          : "--text and --tokens are both given; keep one";
  }
  if (!c.init.empty() && !c.given.contains("--heads")) return "--heads must be given with --init: a file of weights does not tell it";
  if (c.init.empty() && c.model.width % c.model.heads != 0) {
    return fmt::format("--heads {} does not divide --width {}; give a width that is a multiple of the heads", c.model.heads, c.model.width);
  }
  if (c.warmup > c.steps) return fmt::format("--warmup {} is longer than --steps {}; lower it", c.warmup, c.steps);
  if (flags.given("--min-lr") && c.min_lr > c.lr) return fmt::format("--min-lr {:g} is above --lr {:g}; lower it", c.min_lr, c.lr);
  if (c.beta1 >= 1.0 || c.beta2 >= 1.0) return fmt::format("--beta{} must be below 1", c.beta1 >= 1.0 ? 1 : 2);
  const std::vector<OnlyFor> limited = {{"--beta1", {"adamw", "adam", "lion"}},
                                        {"--beta2", {"adamw", "adam", "lion"}},
                                        {"--eps", {"adamw", "adam", "adagrad"}},
                                        {"--momentum", {"sgd"}}};
  for (const OnlyFor& l : limited) {
    if (flags.given(l.flag) && std::find(l.optimizers.begin(), l.optimizers.end(), c.optimizer) == l.optimizers.end()) {
      return fmt::format("{} has no meaning for --optimizer {}; remove it or choose {}", l.flag, c.optimizer,
                         fmt::join(l.optimizers, ", "));
    }
  }
  if (c.reduction == "topology" && c.transport != "hierarchical" && c.transport != "auto")
    return fmt::format("--reduction topology is for --transport hierarchical; {} adds in leaf order", c.transport);
  if (flags.given("--threads") && (c.transport == "mpi" || c.transport == "node" || c.transport == "hierarchical"))
    return fmt::format("--threads is for --transport thread; mpirun -np sets the ranks of {}", c.transport);
  return {};
}

}  // namespace

tessera::Optimizer Config::make_optimizer() const {
  const auto f = [](double x) { return static_cast<float>(x); };
  if (optimizer == "adam") return tessera::Adam{.beta1 = f(beta1), .beta2 = f(beta2), .eps = f(eps), .weight_decay = f(weight_decay)};
  if (optimizer == "sgd") return tessera::Sgd{.momentum = f(momentum), .weight_decay = f(weight_decay)};
  if (optimizer == "adagrad") return tessera::Adagrad{.eps = f(eps), .weight_decay = f(weight_decay)};
  if (optimizer == "lion") return tessera::Lion{.beta1 = f(beta1), .beta2 = f(beta2), .weight_decay = f(weight_decay)};
  return tessera::AdamW{.beta1 = f(beta1), .beta2 = f(beta2), .eps = f(eps), .weight_decay = f(weight_decay)};
}

std::chrono::milliseconds Config::deadline_time() const {
  if (hang_rank >= 0) return std::chrono::hours(24);
  return std::chrono::milliseconds(static_cast<std::int64_t>(deadline * 1000.0));
}

CommandLine read_command_line(int argc, const char* const* argv) {
  CommandLine line;
  FlagTable flags(kProgram, "Trains a GPT with its training state sharded over ranks. Under mpirun each process is a rank.",
                  std::string(tessera::kVersion));
  declare_flags(flags, line.config);
  const Parsed parsed = flags.parse(argc, argv);
  line.error = parsed.error;
  line.printout = parsed.printout;
  if (!line.printout.empty()) return line;
  Config& c = line.config;
  for (const char* flag : {"--layers", "--heads", "--width", "--context", "--vocab", "--threads"}) {
    if (flags.given(flag)) c.given.emplace(flag);
  }
  if (c.min_lr < 0.0) c.min_lr = c.lr / 10.0;
  if (line.error.empty()) line.error = check_together(flags, c);
  return line;
}

void settle_batches(Config& config, int ranks, std::vector<std::string>& decisions) {
  const std::int64_t step_of = std::max<std::int64_t>(config.micro_batch, 1) * ranks;
  const std::string reason = config.micro_batch > 0 ? fmt::format("--micro-batch {} x {} ranks = {}", config.micro_batch, ranks, step_of)
                                                    : fmt::format("{} ranks", ranks);
  if (config.batch == 0) {
    config.batch = (8 + step_of - 1) / step_of * step_of;
    if (config.batch != 8) decisions.push_back(fmt::format("batch {}: the next multiple of {} after 8", config.batch, reason));
  }
  if (config.batch % step_of != 0) {
    const std::int64_t below = config.batch / step_of * step_of;
    throw InputError(fmt::format("--batch {} is not a multiple of {}; the nearest valid {} {}{}", config.batch, reason,
                                 below > 0 ? "are" : "is", below > 0 ? fmt::format("{} and ", below) : "", below + step_of));
  }
  if (config.micro_batch == 0) config.micro_batch = config.batch / ranks;
}

std::string flags_json(const Config& config) {
  Config copy = config;
  FlagTable flags(kProgram, {}, {});
  declare_flags(flags, copy);
  return flags.json();
}

}  // namespace gpt
