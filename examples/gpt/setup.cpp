#include "examples/gpt/setup.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "examples/gpt/agreement.h"
#include "examples/gpt/counter_random.h"

namespace gpt {
namespace {

// The text of the InputError that `action` throws, or nothing.
std::string complaint_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const InputError& e) { return e.what(); }
}

void settle_sizes(Setup& setup) {
  Config& config = setup.config;
  if (setup.weights) {
    tessera::GptConfig sizes = setup.weights->sizes();
    sizes.heads = config.model.heads;
    const auto conflict = [&](const char* flag, std::int64_t asked, std::int64_t found) {
      if (asked != found && config.given.contains(flag)) {
        throw InputError(fmt::format("{} {} contradicts --init {}, which has {}; leave the flag out", flag, asked, config.init, found));
      }
    };
    conflict("--layers", config.model.layers, sizes.layers);
    conflict("--width", config.model.width, sizes.width);
    conflict("--context", config.model.context, sizes.context);
    conflict("--vocab", config.model.vocab, sizes.vocab);
    if (sizes.width % sizes.heads != 0) {
      throw InputError(
          fmt::format("--heads {} does not divide the width {} of --init {}; give a divisor", sizes.heads, sizes.width, config.init));
    }
    config.model = sizes;
  }
  setup.model = tessera::describe_gpt(config.model);
}

void freeze(Setup& setup) {
  for (std::string prefix : setup.config.freeze) {
    const std::string asked = prefix;
    if (prefix.rfind("transformer.", 0) == 0) prefix.erase(0, std::strlen("transformer."));
    if (prefix.empty() || setup.model.spec.freeze(prefix) == 0) {
      throw InputError(fmt::format("--freeze '{}': no tensor's name starts so; names are wte.weight, wpe.weight, ln_f.*, h.0.* to h.{}.*",
                                   asked, setup.config.model.layers - 1));
    }
  }
  if (setup.model.spec.trainable_elements() == tessera::Elements(0))
    throw InputError("--freeze: every tensor is frozen; train some of them");
}

void set_options(Setup& setup, int ranks) {
  const Config& config = setup.config;
  tessera::Options& options = setup.options;
  options.stage = static_cast<tessera::Stage>(config.stage);
  options.optimizer = config.make_optimizer();
  options.micro_batches = static_cast<int>(setup.micro_batches(ranks));
  options.prefetch = static_cast<int>(config.prefetch);
  options.parameter_slots = std::max(2, options.prefetch + 1);
  options.gradient_slots = options.parameter_slots;  // as many units may wait for their reduction as for their use
  options.memory_budget = tessera::Bytes(config.memory_budget);
  options.deadline = config.deadline_time();
  options.non_finite = config.on_nan == "stop" ? tessera::NonFinite::raise : tessera::NonFinite::skip;
}

double bytes_of_machine() { return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)); }

// Sizes that no machine holds, before integers overflow on them.
void refuse_absurd_sizes(const Config& config) {
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const tessera::GptConfig& m = config.model;
  const double parameters = f(m.layers) * 12.0 * f(m.width) * f(m.width) + f(m.vocab + m.context) * f(m.width);
  const double activations = f(config.micro_batch) * f(m.context) * (f(m.layers) * 10.0 * f(m.width) + f(m.heads) * f(m.layers));
  if (4.0 * parameters > 1e3 * bytes_of_machine() || 4.0 * activations > bytes_of_machine()) {
    throw InputError(
        fmt::format("--layers {} --width {} --context {} --micro-batch {}: {:.3g} parameters and {:.3g} activations per rank are "
                    "beyond this machine; lower them",
                    m.layers, m.width, m.context, config.micro_batch, parameters, activations));
  }
}

void refuse_what_does_not_fit(const Setup& setup, tessera::World& world) {
  const Config& config = setup.config;
  tessera::MemoryForecast forecast;
  try {
    const auto& communicator = world.communicator();
    forecast = tessera::forecast_memory(setup.model.spec, setup.options,
                                        {world.size(), communicator.full_flat_addressable(), communicator.scratch_bytes(world.size())});
  } catch (const tessera::UsageError& e) {
    throw InputError(config.memory_budget > 0 ? fmt::format("--memory-budget {}: {}", config.memory_budget, e.what())
                                              : std::string(e.what()));
  }
  std::int64_t neighbours = 0;
  for (int r = 0; r < world.size(); ++r) {
    if (world.communicator().host_of(tessera::Rank(r)) == world.communicator().host_of(world.rank())) ++neighbours;
  }
  const std::int64_t bytes = forecast.bytes.total.value + tessera::gpt_activation_bytes(config.model, config.micro_batch).value;
  const double machine = bytes_of_machine();
  if (static_cast<double>(bytes) * static_cast<double>(neighbours) > machine) {
    throw InputError(
        fmt::format("--layers {} --width {} at --stage {} need {} bytes on each of {} ranks of a machine that has {:.0f}; lower them, "
                    "or use more ranks or a higher stage",
                    config.model.layers, config.model.width, config.stage, bytes, neighbours, machine));
  }
}

// Whether a file can be made there, found out by making one beside it.
void check_output(const char* flag, const std::string& path) {
  if (path.empty()) return;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    throw InputError(fmt::format("{} {}: is a folder; give the name of a file", flag, path));
  }
  std::string trial = path + ".XXXXXX";
  const int descriptor = ::mkstemp(trial.data());
  if (descriptor < 0)
    throw InputError(fmt::format("{} {}: cannot be written: {}; give a file in a folder that is there", flag, path, std::strerror(errno)));
  ::close(descriptor);
  ::unlink(trial.c_str());
}

void open_tokens(Setup& setup) {
  const Config& config = setup.config;
  const bool text = !config.text.empty();
  setup.tokens =
      std::make_unique<TokenFile>(text ? "--text" : "--tokens", config.data_path(), text ? TokenFile::Kind::bytes : TokenFile::Kind::uint16,
                                  config.model.vocab, config.model.context + 1);
  const std::int64_t sequences = (setup.tokens->count() - 1) / config.model.context;
  if (config.order == "sequential" && sequences / config.batch < config.steps) {
    setup.decisions.push_back(fmt::format("order sequential: {} holds {} sequences, so they are read again from the start after as many",
                                          config.data_path(), sequences));
  }
}

}  // namespace

Setup prepare(tessera::World& world, const CommandLine& line) {
  agree_on_input(world, line.error, key_of(flags_json(line.config)),
                 "the ranks were started with different flags; start all of them with the same");
  Setup setup;
  setup.config = line.config;
  const std::string complaint = complaint_of([&] {
    if (setup.config.hang_rank >= world.size()) {
      throw InputError(fmt::format("--hang-rank {}: the ranks are 0 to {}", setup.config.hang_rank, world.size() - 1));
    }
    settle_batches(setup.config, world.size(), setup.decisions);
    if (!setup.config.init.empty()) setup.weights.emplace(setup.config.init);
    settle_sizes(setup);
    refuse_absurd_sizes(setup.config);
    freeze(setup);
    set_options(setup, world.size());
    refuse_what_does_not_fit(setup, world);
    open_tokens(setup);
    if (world.rank() == tessera::Rank(0)) {
      check_output("--report", setup.config.report);
      check_output("--export", setup.config.export_path);
      check_output("--trace", setup.config.trace);
    }
  });
  const std::uint64_t seen =
      setup.tokens == nullptr ? 0 : mix(setup.model.spec.fingerprint(), static_cast<std::uint64_t>(setup.tokens->count()));
  agree_on_input(world, complaint, seen,
                 fmt::format("{} or --init is not the same file on all ranks; copy it to every machine",
                             line.config.text.empty() ? "--tokens" : "--text"));
  if (setup.weights) {
    for (const std::string& notice : setup.weights->notices()) setup.decisions.push_back(notice);
  }
  return setup;
}

}  // namespace gpt
