#include "examples/gpt/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <vector>

#include "examples/gpt/agreement.h"
#include "examples/gpt/matrix_rate.h"
#include "examples/gpt/model.h"
#include "examples/gpt/process_memory.h"
#include "examples/gpt/report.h"
#include "examples/gpt/sample.h"
#include "examples/gpt/schedule.h"
#include "examples/gpt/trace.h"

namespace gpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Prints lines on rank 0 unless --quiet: the first, the last, and at most one a second between.
class Progress {
 public:
  Progress(const tessera::World& world, const Config& config)
      : prints_(world.rank() == tessera::Rank(0) && !config.quiet), steps_(config.steps) {}

  void say(const std::string& text) const {
    if (prints_) std::fputs((text + "\n").c_str(), stdout), std::fflush(stdout);
  }
  void step(const StepRecord& s) {
    if (s.step != 0 && s.step + 1 != steps_ && seconds_since(last_) < 1.0) return;
    last_ = Clock::now();
    say(fmt::format("step {:>6}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {:.0f}% of the matrix rate{}", s.step + 1, steps_,
                    s.loss, s.grad_norm, s.learning_rate, s.tokens_per_second, 100.0 * s.speed_of_light, s.skipped ? "  skipped" : ""));
  }

 private:
  bool prints_;
  std::int64_t steps_;
  Clock::time_point last_{};
};

class Run {
 public:
  Run(tessera::World& world, Setup& setup)
      : world_(world),
        setup_(setup),
        config_(setup.config),
        progress_(world, config_),
        trace_(config_.trace.empty() ? nullptr : std::make_shared<Trace>(setup.model.spec)),
        sampler_(config_.order == "random" ? Sampler::Order::random : Sampler::Order::sequential, static_cast<std::uint64_t>(config_.seed),
                 setup.tokens->count(), config_.batch, config_.model.context) {
    setup.options.observer = trace_;
    make_engine();
    model_.emplace(*engine_, setup.model, config_.micro_batch);
    const auto sequences = static_cast<std::size_t>(config_.micro_batch);
    const auto context = static_cast<std::size_t>(config_.model.context);
    inputs_.resize(sequences * context);
    targets_.resize(sequences * context);
    row_.resize(context + 1);
    losses_.resize(static_cast<std::size_t>(setup.micro_batches(world.size())));
  }

  void go() {
    progress_.say(fmt::format("{} parameters, stage {}, {} ranks over {}, batch {} in micro-batches of {}",
                              setup_.model.spec.elements().value, config_.stage, world_.size(), world_.transport(), config_.batch,
                              config_.micro_batch));
    report_.decisions = setup_.decisions;
    for (const std::string& d : engine_->forecast().decisions) report_.decisions.push_back(d);
    for (const std::string& d : report_.decisions) progress_.say(d);
    engine_->initialize(setup_.weights ? setup_.weights->fill()
                                       : initial_weights(static_cast<std::uint64_t>(config_.seed), config_.model.layers));
    measure_.pss_peak_bytes = pss_bytes();
    measure_machine();
    const Schedule schedule{config_.lr, config_.min_lr, config_.warmup, config_.steps};
    for (std::int64_t step = 0; step < config_.steps; ++step) {
      report_.steps.push_back(train_step(step, schedule.at(step)));
      progress_.step(report_.steps.back());
    }
    finish();
  }

 private:
  void make_engine() {
    std::string complaint;
    try {
      engine_.emplace(world_, setup_.model.spec, setup_.options);
    } catch (const tessera::UsageError& e) { complaint = e.what(); }
    agree_on_input(world_, complaint, 0, {});
  }

  // All ranks at once, as in training: on fewer cores than ranks each gets its part.
  void measure_machine() {
    const double mine = measure_matrix_rate(0.05);
    machine_rate_ = 0.0;
    for (const double rate : from_all_ranks(world_, mine)) machine_rate_ += rate;
  }

  void load(std::int64_t step, std::int64_t sequence, std::size_t row) {
    const auto context = config_.model.context;
    setup_.tokens->read(sampler_.start_of(step, sequence), context + 1, row_.data());
    const auto at = static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(context));
    std::copy(row_.begin(), row_.end() - 1, inputs_.begin() + at);
    std::copy(row_.begin() + 1, row_.end(), targets_.begin() + at);
  }

  StepRecord train_step(std::int64_t step, double learning_rate) {
    const auto begin = Clock::now();
    const std::int64_t m = config_.micro_batch;
    for (std::size_t a = 0; a < losses_.size(); ++a) {
      const std::int64_t leaf = static_cast<std::int64_t>(a) * world_.size() + world_.rank().value;
      for (std::int64_t b = 0; b < m; ++b) load(step, leaf * m + b, static_cast<std::size_t>(b));
      losses_[a] = model_->train_leaf(inputs_.data(), targets_.data());
    }
    measure_.pss_peak_bytes = std::max(measure_.pss_peak_bytes, pss_bytes());
    const double tokens = static_cast<double>(config_.batch) * static_cast<double>(config_.model.context);
    const double loss = engine_->sum(losses_) / tokens;
    const tessera::StepResult result =
        engine_->step({.learning_rate = static_cast<float>(learning_rate), .gradient_scale = 1.0 / tokens, .clip_norm = config_.clip});
    if (!result.applied) progress_.say(fmt::format("step {} skipped: {}", step + 1, result.reason));
    const double seconds = seconds_since(begin);
    return {.step = step,
            .loss = loss,
            .grad_norm = result.gradient_norm,
            .learning_rate = learning_rate,
            .seconds = seconds,
            .tokens_per_second = tokens / seconds,
            .speed_of_light = tokens * tessera::gpt_training_flops_per_token(config_.model) / seconds / machine_rate_,
            .skipped = !result.applied};
  }

  void finish() {
    const bool lead = world_.rank() == tessera::Rank(0);
    if (config_.sample > 0) {
      const std::int32_t prompt = config_.model.vocab > '\n' ? '\n' : 0;
      const std::string text = sample(*engine_, *model_, config_.sample, prompt, static_cast<std::uint64_t>(config_.seed));
      if (lead) std::fputs((text + "\n").c_str(), stdout), std::fflush(stdout);
    }
    if (!config_.export_path.empty()) export_weights(world_, *engine_, config_.export_path);
    measure_.activations_peak_bytes = model_->activation_bytes().value;
    measure_.rss_peak_bytes = rss_peak_bytes();
    measure_.pss_peak_bytes = std::max(measure_.pss_peak_bytes, pss_bytes());
    measure_.compute_seconds = std::chrono::duration<double>(model_->compute_time()).count();
    report_.ranks = engine_->reports();
    report_.measures = from_all_ranks(world_, measure_);
    if (trace_ != nullptr) trace_->write(world_, config_.trace);
    if (lead && !config_.report.empty()) write_report(config_.report, setup_, world_, report_);
    progress_.say(memory_table(report_, config_.stage));
  }

  tessera::World& world_;
  Setup& setup_;
  const Config& config_;
  Progress progress_;
  std::shared_ptr<Trace> trace_;
  Sampler sampler_;
  std::optional<tessera::Engine> engine_;
  std::optional<Model> model_;
  std::vector<std::int32_t> inputs_, targets_, row_;
  std::vector<double> losses_;
  double machine_rate_ = 0.0;
  RankMeasure measure_;
  RunReport report_;
};

}  // namespace

void train(tessera::World& world, Setup& setup) { Run(world, setup).go(); }

}  // namespace gpt
