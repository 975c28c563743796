#include "runtime/engine_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "runtime/options_text.h"
#include "tessera/error.h"

namespace tessera::detail {

using runtime::ArrivalKind;
using runtime::ArrivalRecord;
using runtime::Clock;

template <class Body>
auto EngineImpl::remember(Body body) -> decltype(body()) {
  // An earlier one was handled by the caller, unless it is what unwinds the leases now.
  if (std::uncaught_exceptions() == 0) own_error_.clear();
  try {
    return body();
  } catch (const std::exception& e) {
    own_error_ = e.what();
    throw;
  }
}

EngineImpl::EngineImpl(const World& world, ModelSpec spec, Options options) : spec_(std::move(spec)), options_(std::move(options)) {
  Communicator& parent = world.communicator();
  // What this rank finds wrong is said at the first arrival, so that its peers do not wait for it.
  std::string error;
  TransportTraits transport{
      .ranks = parent.size(), .full_flat_addressable = parent.full_flat_addressable(), .scratch = parent.scratch_bytes(parent.size())};
  try {
    placement_ = runtime::place(spec_, options_, transport);
    groups_ = runtime::resolve_groups(spec_, options_);
  } catch (const std::exception& e) { error = e.what(); }  // UsageError, or whatever Options::groups throws
  // A deadline that cannot be is reported at that arrival too, which must still run.
  communicator_ = parent.split(0, parent.rank().value, ledger_, options_.deadline.count() > 0 ? options_.deadline : parent.deadline());
  std::vector<std::string> names;
  for (const UnitSpec& u : spec_.units()) names.push_back(u.name);
  communicator_->name_units(std::move(names));
  if (options_.observer) communicator_->on_finish([observer = options_.observer](const OperationRecord& r) { observer->operation(r); });
  context_ = std::make_unique<runtime::Context>(spec_, options_, communicator_);
  const std::string words = runtime::in_words(options_, groups_);
  ArrivalRecord setup = record(ArrivalKind::setup, error);
  setup.spec = spec_.fingerprint();
  setup.options = runtime::fingerprint(words);
  if (error.empty()) setup.say(words);
  runtime::arrive(*context_, setup);

  // Shared memory that cannot be had is found out before it is touched. Slots then take the place of what would have been read in place,
  // which the budget may not hold: an error found after the first arrival is said at the second.
  ArrivalRecord memory = record(ArrivalKind::memory, {});
  if (const std::string refused = communicator_->reserve(placement_.shared); !refused.empty()) {
    transport.full_flat_addressable = communicator_->full_flat_addressable();
    try {
      placement_ = runtime::place(spec_, options_, transport);
      placement_.forecast.decisions.push_back("gathers and reductions copy: " + refused);
    } catch (const UsageError& e) { memory = record(ArrivalKind::memory, e.what()); }
    runtime::arrive(*context_, memory);
  }
  try {
    storage_ = std::make_unique<runtime::Storage>(placement_, *communicator_, ledger_);
  } catch (const OutOfMemory& e) {
    memory.error = runtime::ArrivalError::out_of_memory;
    memory.subject = static_cast<std::uint64_t>(e.requested.value);
    memory.say(e.what());
  }
  runtime::arrive(*context_, memory);
  parameters_ = std::make_unique<runtime::ParameterSchedule>(*context_, *storage_);
  gradients_ = std::make_unique<runtime::GradientSchedule>(*context_, *storage_);
  update_ = std::make_unique<runtime::Update>(*context_, *storage_, *gradients_, groups_);
}

EngineImpl::~EngineImpl() { communicator_->leave(); }

ArrivalRecord EngineImpl::record(ArrivalKind kind, const std::string& error) const {
  ArrivalRecord mine;
  mine.kind = kind;
  mine.leaves = leaves_;
  mine.gathers = communicator_->submitted(Channel::gather);
  if (parameters_) mine.leased = parameters_->order();
  mine.reductions = communicator_->submitted(Channel::reduce);
  if (!error.empty()) {
    mine.error = runtime::ArrivalError::usage;
    mine.say(error);
  }
  return mine;
}

// Nobody leaves a collective change before all have made it. Otherwise a faster rank's exception in what comes next could end the change
// here and not there.
void EngineImpl::part_together() {
  Pending all = communicator_->barrier(context_->label(Channel::control, kNoUnit), context_->stream(Channel::control));
  context_->wait(all, "wait step", kNoUnit);
}

// The arrival cuts an error's text; the rank whose error it is knows the whole.
void EngineImpl::arrive_after_fill(ArrivalKind kind, const std::string& what, const std::string& error) {
  const std::string whole = error.empty() ? error : fmt::format("{}: the fill threw: {}", what, error);
  try {
    runtime::arrive(*context_, record(kind, whole));
  } catch (const UsageError&) {
    if (!whole.empty()) throw UsageError(whole);
    throw;
  }
}

void EngineImpl::defer(std::exception_ptr error) noexcept {
  if (!deferred_) deferred_ = std::move(error);
}

void EngineImpl::check_ready() {
  // An interrupted communicator refuses every verb with StepInterrupted: let it say so, whoever began.
  if (communicator_->interrupted()) {
    deferred_ = nullptr;
    communicator_->barrier(context_->label(Channel::control, kNoUnit), context_->stream(Channel::control)).wait_host();
  }
  if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
}

void EngineImpl::check_unit(UnitId unit) const {
  if (unit.value < 0 || static_cast<std::size_t>(unit.value) >= spec_.units().size())
    throw UsageError(fmt::format("unit #{} is not one of the model's {} units", unit.value, spec_.units().size()));
}

std::string EngineImpl::open_ends() const {
  if (parameters_->leases() > 0) return fmt::format("a parameter lease of {} is still alive", parameters_->live_leases());
  if (gradients_->leases() > 0) return fmt::format("a gradient lease of {} is still alive", gradients_->live_leases());
  if (scope_ == Scope::leaf) return "a micro-batch is still open";
  if (scope_ == Scope::evaluation) return "an evaluation is still open";
  return {};
}

// --- values ---------------------------------------------------------------------------------------------------------

std::string EngineImpl::fill_segment(UnitId unit, std::size_t i, int only_tensor, const Fill& fill) {
  const runtime::SegmentPlacement& s = storage_->unit(unit).segments[i];
  const Region own = storage_->owned_parameters(unit, i);
  const Elements begin = s.share * communicator_->rank().value;
  std::string error;
  try {
    for (const shard::TensorRange& r : storage_->pieces(unit, s, begin, s.share)) {
      if (only_tensor >= 0 && r.tensor != only_tensor) continue;
      fill(TensorPiece{unit, spec_[unit], spec_[unit].tensors[static_cast<std::size_t>(r.tensor)], r.tensor_offset, r.elements,
                       static_cast<std::byte*>(own.data) + to_bytes(r.flat_offset - begin, s.dtype).value});
    }
  } catch (const std::exception& e) { error = e.what(); } catch (...) {
    error = "something that is no std::exception";
  }
  if (!s.parameters_whole) return error;
  // Also after an error: the other ranks are in this gather.
  const Buffer& whole = storage_->segment(unit, i).parameters;
  Pending pending =
      communicator_->all_gather({own.data, own.owner}, {whole.data(), whole.owner()}, s.share, s.dtype,
                                context_->label(Channel::gather, unit, static_cast<int>(i)), context_->stream(Channel::gather));
  context_->wait(pending, "wait parameters", unit);
  return error;
}

void EngineImpl::initialize(const Fill& fill) {
  check_ready();
  const std::string ends = open_ends();
  runtime::arrive(*context_, record(ArrivalKind::initialize, ends.empty() ? ends : "initialize: " + ends));
  parameters_->drop_all();
  std::string error;
  for (std::size_t u = 0; u < spec_.units().size(); ++u)
    for (std::size_t i = 0; i < placement_.units[u].segments.size(); ++i) {
      const std::string of_segment = fill_segment(UnitId(static_cast<int>(u)), i, -1, fill);
      if (error.empty()) error = of_segment;
    }
  arrive_after_fill(ArrivalKind::initialize, "initialize", error);
  part_together();
}

void EngineImpl::set(UnitId unit, std::string_view tensor, const Fill& fill) {
  check_ready();
  std::string error;
  int index = -1;
  try {
    check_unit(unit);
    index = tensor_index(unit, tensor);
  } catch (const UsageError& e) { error = e.what(); }
  if (error.empty() && !open_ends().empty()) error = fmt::format("set of '{}': {}", tensor, open_ends());
  ArrivalRecord mine = record(ArrivalKind::set, error);
  mine.subject = (static_cast<std::uint64_t>(unit.value) << 32) + static_cast<std::uint32_t>(index) + 1;
  runtime::arrive(*context_, mine);
  parameters_->drop_all();
  const int segment = storage_->layout(unit).place(index).segment;
  for (std::size_t i = 0; i < storage_->unit(unit).segments.size(); ++i)
    if (storage_->unit(unit).segments[i].segment == segment) error = fill_segment(unit, i, index, fill);
  arrive_after_fill(ArrivalKind::set, fmt::format("set of '{}'", tensor), error);
  part_together();
}

int EngineImpl::tensor_index(UnitId unit, std::string_view tensor) const {
  const std::vector<TensorSpec>& tensors = spec_[unit].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].name == tensor) return static_cast<int>(t);
  throw UsageError(fmt::format("unit '{}' has no tensor '{}'", spec_[unit].name, tensor));
}

// --- scopes ---------------------------------------------------------------------------------------------------------

void EngineImpl::open_leaf() {
  check_ready();
  if (scope_ != Scope::none) throw UsageError(fmt::format("micro_batch: {}", open_ends()));
  if (leaves_ >= options_.micro_batches)
    throw UsageError(fmt::format(
        "this is micro-batch {} of the step, but Options::micro_batches is {} (memory was planned for that); raise it, or call step()",
        leaves_ + 1, options_.micro_batches));
  scope_ = Scope::leaf;
  spoiled_ = false;
  own_error_.clear();
  context_->leaf = leaves_;
  leaf_begin_ = Clock::now();
  if (first_leaf_ == Clock::time_point{}) first_leaf_ = leaf_begin_;
  try {
    parameters_->open_scope(runtime::ScopeKind::leaf);
  } catch (...) {
    abandon_leaf();
    throw;
  }
}

void EngineImpl::close_leaf() {
  if (scope_ != Scope::leaf) return;
  try {
    if (parameters_->leases() > 0 || gradients_->leases() > 0) throw UsageError("the micro-batch ends, but " + open_ends());
    if (spoiled_)
      throw UsageError("an exception crossed a gradient lease of this micro-batch: its gradients are incomplete; call restart_step()");
    check_ready();
    gradients_->finish_leaf();
    parameters_->close_scope();
  } catch (const std::exception& e) {
    if (own_error_.empty()) own_error_ = e.what();
    abandon_leaf();
    throw;
  }
  context_->span("leaf", kNoUnit, leaf_begin_, Clock::now());
  scope_ = Scope::none;
  context_->leaf = -1;
  ++leaves_;
}

void EngineImpl::interrupt(const std::string& cause) noexcept {
  try {
    communicator_->interrupt(cause);
  } catch (...) { defer(std::current_exception()); }
}

void EngineImpl::abandon_leaf() noexcept {
  if (scope_ != Scope::leaf) return;
  // First cause wins: peers' pending operations end before this rank touches its own.
  interrupt(own_error_.empty() ? std::string("an exception in the caller's code left the micro-batch") : own_error_);
  scope_ = Scope::none;
  context_->leaf = -1;
  try {
    parameters_->abandon_scope();
  } catch (...) { defer(std::current_exception()); }
}

void EngineImpl::open_evaluation() {
  check_ready();
  if (scope_ != Scope::none) throw UsageError(fmt::format("evaluation: {}", open_ends()));
  scope_ = Scope::evaluation;
  own_error_.clear();
  try {
    parameters_->open_scope(runtime::ScopeKind::evaluation);
  } catch (...) {
    abandon_evaluation();
    throw;
  }
}

void EngineImpl::close_evaluation() {
  if (scope_ != Scope::evaluation) return;
  if (communicator_->interrupted()) {
    abandon_evaluation();
    check_ready();  // throws StepInterrupted
  }
  if (parameters_->leases() > 0) {
    const std::string ends = open_ends();
    abandon_evaluation();
    throw UsageError("the evaluation ends, but " + ends);
  }
  scope_ = Scope::none;
  parameters_->close_scope();
}

void EngineImpl::abandon_evaluation() noexcept {
  if (scope_ != Scope::evaluation) return;
  interrupt(own_error_.empty() ? std::string("an exception in the caller's code left the evaluation") : own_error_);
  scope_ = Scope::none;
  try {
    parameters_->abandon_scope();
  } catch (...) { defer(std::current_exception()); }
}

// --- leases ---------------------------------------------------------------------------------------------------------

void EngineImpl::open_parameters(UnitId unit) {
  remember([&] {
    check_ready();
    check_unit(unit);
    parameters_->open(unit);
  });
}

void EngineImpl::close_parameters(UnitId unit) {
  remember([&] { parameters_->close(unit, !communicator_->interrupted()); });
}

const void* EngineImpl::find_parameters(UnitId unit, std::string_view tensor, DType dtype, Elements& count) const {
  const auto index = tensor_index(unit, tensor);
  const TensorSpec& t = spec_[unit].tensors[static_cast<std::size_t>(index)];
  check_dtype(t, dtype);
  const shard::TensorPlace& place = storage_->layout(unit).place(index);
  count = place.elements;
  const auto& segments = storage_->unit(unit).segments;
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (segments[i].segment == place.segment) return parameters_->data(unit, i) + to_bytes(place.flat_offset, dtype).value;
  return nullptr;  // a segment without elements
}

runtime::GradientTarget EngineImpl::open_gradients(UnitId unit) {
  return remember([&] {
    check_ready();
    check_unit(unit);
    if (scope_ != Scope::leaf)
      throw UsageError(fmt::format("gradients of unit '{}' outside a micro_batch(): a gradient belongs to a leaf", spec_[unit].name));
    return gradients_->open(unit);
  });
}

void EngineImpl::close_gradients(UnitId unit, const runtime::GradientTarget& target, bool unwinding) {
  if (unwinding) spoiled_ = true;
  if (unwinding || communicator_->interrupted() || scope_ != Scope::leaf) {
    gradients_->drop(unit, target);
    return;
  }
  remember([&] { gradients_->close(unit, target); });
}

std::span<float> EngineImpl::find_gradients(UnitId unit, std::string_view tensor, runtime::GradientTarget& target) {
  const int index = tensor_index(unit, tensor);
  const TensorSpec& t = spec_[unit].tensors[static_cast<std::size_t>(index)];
  if (t.training == Training::frozen) return {};
  target.given[static_cast<std::size_t>(index)] = true;
  const shard::TensorPlace& place = storage_->layout(unit).place(index);
  const auto& segments = storage_->unit(unit).segments;
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (segments[i].segment == place.segment)
      return {gradients_->data(unit, i, target) + place.flat_offset.value, static_cast<std::size_t>(place.elements.value)};
  return {};
}

// --- the step -------------------------------------------------------------------------------------------------------

double EngineImpl::sum(std::span<const double> values) {
  check_ready();
  const std::vector<std::byte> all = runtime::exchange(*context_, values.data(), values.size_bytes(), "wait sum");
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  double total = 0.0;
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t r = 0; r < ranks; ++r) {
      double v = 0.0;
      std::memcpy(&v, all.data() + (r * values.size() + a) * sizeof v, sizeof v);
      total += v;
    }
  return total;
}

StepResult EngineImpl::step(const StepOptions& options) {
  check_ready();
  std::string error = open_ends();
  if (error.empty() && leaves_ == 0) error = "no micro-batch was run";
  if (error.empty() && !std::isfinite(options.learning_rate)) error = fmt::format("learning_rate is {}", options.learning_rate);
  const auto scale = static_cast<float>(options.gradient_scale);
  if (error.empty() && (!std::isfinite(scale) || (scale == 0.0f && options.gradient_scale != 0.0)))
    error = fmt::format("gradient_scale is {}, which fp32 cannot hold", options.gradient_scale);
  if (error.empty() && !(options.clip_norm >= 0.0)) error = fmt::format("clip_norm is {} (0 is off)", options.clip_norm);
  ArrivalRecord mine = record(ArrivalKind::step, error.empty() ? error : "step: " + error);
  mine.options = runtime::fingerprint(runtime::in_words(options));
  if (error.empty()) mine.say(runtime::in_words(options));
  try {
    runtime::arrive(*context_, mine, gradients_->reductions());
  } catch (const runtime::RanksDiverged& e) {
    interrupt(e.what());  // operations without a counterpart end here, not at their deadline
    throw;
  }
  parameters_->keep_plans();
  return finish_step(options);
}

StepResult EngineImpl::finish_step(const StepOptions& options) {
  gradients_->finish_sum();
  const Clock::time_point begin = Clock::now();
  const double waited = context_->exposed_seconds();
  update_->gather_gradients();
  const runtime::NormVerdict verdict = update_->norm(options.gradient_scale, options.norm);

  StepResult result;
  result.leaves = leaves_ * communicator_->size();
  result.gradient_norm = verdict.norm;
  if (verdict.non_finite > 0)
    result.reason = fmt::format("{} elements of the scaled gradient are NaN or infinite ({})", verdict.non_finite, verdict.where);
  result.applied = verdict.non_finite == 0 || options_.non_finite == NonFinite::apply;
  if (options.clip_norm > 0.0 && verdict.non_finite == 0) result.clip_factor = std::min(1.0, options.clip_norm / (verdict.norm + 1e-6));
  try {
    if (result.applied) {
      update_->apply(options, result.clip_factor);
      ++applied_;
    }
    const auto spent = Clock::now() - begin -
                       std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(context_->exposed_seconds() - waited));
    optimizer_time_ += spent;
    context_->span("optimizer", kNoUnit, begin, Clock::now());
    if (result.applied) update_->gather_parameters();
    result.step = applied_;
    drop_step();
    ++context_->step;
    part_together();
  } catch (const CommFailure&) { throw; } catch (const std::exception& e) {
    // Weights have changed here, perhaps not elsewhere: there is no step to go back to.
    communicator_->abort(fmt::format("a step was cut short in its update: {}", e.what()));
    throw;
  }
  if (!result.applied && options_.non_finite == NonFinite::raise) throw RuntimeFailure(result.reason);
  return result;
}

void EngineImpl::drop_step() {
  parameters_->drop_all();
  gradients_->reset();
  leaves_ = 0;
  spoiled_ = false;
  own_error_.clear();
}

void EngineImpl::restart_step() {
  const std::string ends = open_ends();
  if (!ends.empty()) throw UsageError("restart_step: " + ends);
  if (!communicator_->interrupted()) interrupt("restart_step was called");
  communicator_->resume();
  deferred_ = nullptr;
  parameters_->restore_plans();
  drop_step();
}

// --- reports --------------------------------------------------------------------------------------------------------

RankReport EngineImpl::report() const {
  RankReport r;
  r.rank = communicator_->rank();
  r.host = communicator_->host_of(r.rank);
  r.peak = ledger_->peak();
  r.forecast = placement_.forecast.bytes;
  r.traffic = communicator_->traffic();
  r.plan_misses = context_->misses;
  r.exposed_seconds = context_->exposed_seconds();
  r.optimizer_seconds = std::chrono::duration<double>(optimizer_time_).count();
  if (first_leaf_ != Clock::time_point{}) r.total_seconds = std::chrono::duration<double>(Clock::now() - first_leaf_).count();
  return r;
}

std::vector<RankReport> EngineImpl::reports() {
  check_ready();
  struct Wire {
    MemoryBytes peak, forecast;
    Traffic traffic;
    std::int64_t misses;
    double exposed, optimizer, total;
  };
  static_assert(std::is_trivially_copyable_v<Wire>);
  const RankReport own = report();
  const Wire wire{own.peak, own.forecast, own.traffic, own.plan_misses, own.exposed_seconds, own.optimizer_seconds, own.total_seconds};
  const std::vector<std::byte> all = runtime::exchange(*context_, &wire, sizeof wire, "wait reports");
  std::vector<RankReport> reports;
  for (int r = 0; r < communicator_->size(); ++r) {
    Wire w;
    std::memcpy(&w, all.data() + static_cast<std::size_t>(r) * sizeof w, sizeof w);
    RankReport report;
    report.rank = Rank(r);
    report.host = communicator_->host_of(Rank(r));
    report.peak = w.peak;
    report.forecast = w.forecast;
    report.traffic = w.traffic;
    report.plan_misses = w.misses;
    report.exposed_seconds = w.exposed;
    report.optimizer_seconds = w.optimizer;
    report.total_seconds = w.total;
    reports.push_back(std::move(report));
  }
  return reports;
}

void check_dtype(const TensorSpec& tensor, DType asked) {
  if (tensor.dtype != asked)
    throw UsageError(fmt::format("tensor '{}' holds {}, not {}; ask for view<T> with its own element type", tensor.name,
                                 name_of(tensor.dtype), name_of(asked)));
}

}  // namespace tessera::detail
