// The doors of tessera/engine.h: lifetimes and their ends. What happens behind them is engine_impl.cpp.
#include "tessera/engine.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "runtime/engine_impl.h"

namespace tessera {

namespace detail {
struct ParameterLeaseState {
  EngineImpl* engine;
  UnitId unit;
  Phase phase;
  runtime::Clock::time_point begin = runtime::Clock::now();
  bool open = true;

  void end() {
    open = false;
    engine->span(phase == Phase::forward ? "lease forward" : "lease backward", unit, begin);
    engine->close_parameters(unit);
  }
};
struct GradientLeaseState {
  EngineImpl* engine;
  UnitId unit;
  int uncaught;  // exceptions in flight when the lease began: more at its end means that it is being unwound
  runtime::GradientTarget target;
  bool open = true;
};

namespace {
bool unwinding(int uncaught_at_begin) { return std::uncaught_exceptions() > uncaught_at_begin; }

[[noreturn]] void refuse_ended(const EngineImpl& engine, UnitId unit, std::string_view tensor) {
  throw UsageError(fmt::format("tensor '{}' is read through a lease of unit '{}' that has ended; keep the lease alive, or gather again",
                               tensor, engine.spec()[unit].name));
}
}  // namespace
}  // namespace detail

// --- ParameterLease -------------------------------------------------------------------------------------------------

ParameterLease::ParameterLease(std::unique_ptr<detail::ParameterLeaseState> state) : state_(std::move(state)) {}
ParameterLease::ParameterLease(ParameterLease&&) noexcept = default;

ParameterLease::~ParameterLease() {
  if (!state_ || !state_->open) return;
  try {
    state_->end();
  } catch (...) { state_->engine->defer(std::current_exception()); }
}

UnitId ParameterLease::unit() const { return state_ ? state_->unit : kNoUnit; }

const void* ParameterLease::find(std::string_view tensor, DType dtype, Elements& count) const {
  if (!state_) throw UsageError(fmt::format("tensor '{}' is read through a lease that was moved from", tensor));
  if (!state_->open) detail::refuse_ended(*state_->engine, state_->unit, tensor);
  return state_->engine->find_parameters(state_->unit, tensor, dtype, count);
}

void ParameterLease::close() {
  if (!state_ || !state_->open) return;
  state_->end();
}

// --- GradientLease --------------------------------------------------------------------------------------------------

GradientLease::GradientLease(std::unique_ptr<detail::GradientLeaseState> state) : state_(std::move(state)) {}
GradientLease::GradientLease(GradientLease&&) noexcept = default;

GradientLease::~GradientLease() {
  if (!state_ || !state_->open) return;
  try {
    state_->open = false;
    state_->engine->close_gradients(state_->unit, state_->target, detail::unwinding(state_->uncaught));
  } catch (...) { state_->engine->defer(std::current_exception()); }
}

UnitId GradientLease::unit() const { return state_ ? state_->unit : kNoUnit; }

std::span<float> GradientLease::operator[](std::string_view tensor) const& {
  if (!state_) throw UsageError(fmt::format("the gradient of '{}' is taken through a lease that was moved from", tensor));
  if (!state_->open) detail::refuse_ended(*state_->engine, state_->unit, tensor);
  return state_->engine->find_gradients(state_->unit, tensor, state_->target);
}

bool GradientLease::wants(std::string_view tensor) const {
  if (!state_) throw UsageError(fmt::format("'{}' is asked of a lease that was moved from", tensor));
  const int t = state_->engine->tensor_index(state_->unit, tensor);
  return state_->engine->spec()[state_->unit].tensors[static_cast<std::size_t>(t)].training == Training::trainable;
}

void GradientLease::close() {
  if (!state_ || !state_->open) return;
  state_->open = false;
  state_->engine->close_gradients(state_->unit, state_->target, false);
}

// --- scopes ---------------------------------------------------------------------------------------------------------

MicroBatch::MicroBatch(detail::EngineImpl* engine, int uncaught) : engine_(engine), uncaught_(uncaught) {}
MicroBatch::MicroBatch(MicroBatch&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), uncaught_(other.uncaught_) {}

MicroBatch::~MicroBatch() {
  if (engine_ == nullptr) return;
  if (detail::unwinding(uncaught_)) {
    engine_->abandon_leaf();
    return;
  }
  try {
    engine_->close_leaf();
  } catch (...) { engine_->defer(std::current_exception()); }
}

void MicroBatch::close() {
  if (engine_ != nullptr) std::exchange(engine_, nullptr)->close_leaf();
}

void MicroBatch::abandon() {
  if (engine_ != nullptr) std::exchange(engine_, nullptr)->abandon_leaf();
}

Evaluation::Evaluation(detail::EngineImpl* engine, int uncaught) : engine_(engine), uncaught_(uncaught) {}
Evaluation::Evaluation(Evaluation&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), uncaught_(other.uncaught_) {}

Evaluation::~Evaluation() {
  if (engine_ == nullptr) return;
  if (detail::unwinding(uncaught_)) {
    engine_->abandon_evaluation();
    return;
  }
  try {
    engine_->close_evaluation();
  } catch (...) { engine_->defer(std::current_exception()); }
}

void Evaluation::close() {
  if (engine_ != nullptr) std::exchange(engine_, nullptr)->close_evaluation();
}

// --- Engine ---------------------------------------------------------------------------------------------------------

Engine::Engine(const World& world, ModelSpec spec, Options options)
    : impl_(std::make_unique<detail::EngineImpl>(world, std::move(spec), std::move(options))) {}
Engine::~Engine() = default;

Rank Engine::rank() const { return impl_->communicator().rank(); }
int Engine::size() const { return impl_->communicator().size(); }
const ModelSpec& Engine::spec() const { return impl_->spec(); }
const Options& Engine::options() const { return impl_->options(); }

void Engine::initialize(const Fill& fill) { impl_->initialize(fill); }
void Engine::set(UnitId unit, std::string_view tensor, const Fill& fill) { impl_->set(unit, tensor, fill); }

MicroBatch Engine::micro_batch() {
  impl_->open_leaf();
  return MicroBatch(impl_.get(), std::uncaught_exceptions());
}

Evaluation Engine::evaluation() {
  impl_->open_evaluation();
  return Evaluation(impl_.get(), std::uncaught_exceptions());
}

ParameterLease Engine::gather(UnitId unit, Phase phase) {
  impl_->open_parameters(unit);
  return ParameterLease(std::make_unique<detail::ParameterLeaseState>(detail::ParameterLeaseState{impl_.get(), unit, phase}));
}

GradientLease Engine::gradients(UnitId unit) {
  runtime::GradientTarget target = impl_->open_gradients(unit);
  return GradientLease(std::make_unique<detail::GradientLeaseState>(
      detail::GradientLeaseState{impl_.get(), unit, std::uncaught_exceptions(), std::move(target)}));
}

double Engine::sum(std::span<const double> values) { return impl_->sum(values); }
StepResult Engine::step(const StepOptions& options) { return impl_->step(options); }
void Engine::restart_step() { impl_->restart_step(); }
void Engine::set_deadline(std::chrono::milliseconds deadline) { impl_->communicator().set_deadline(deadline); }

std::int64_t Engine::steps() const { return impl_->steps(); }
MemoryForecast Engine::forecast() const { return impl_->forecast(); }
StepPlan Engine::plan() const { return impl_->plan(); }
MemoryBytes Engine::memory() const { return impl_->memory(); }
RankReport Engine::report() const { return impl_->report(); }
std::vector<RankReport> Engine::reports() { return impl_->reports(); }
std::string Engine::dump() const { return impl_->communicator().dump(); }
Elements Engine::dirty_padding() const { return impl_->dirty_padding(); }
std::vector<UnitId> Engine::gathered() const { return impl_->gathered(); }

}  // namespace tessera
