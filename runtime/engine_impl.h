// The executor behind Engine: scopes and leases on one side, schedules on the other. Knows the public Communicator, never a transport.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/arrival.h"
#include "runtime/context.h"
#include "runtime/gradient_schedule.h"
#include "runtime/parameter_schedule.h"
#include "runtime/placement.h"
#include "runtime/storage.h"
#include "runtime/update.h"
#include "tessera/engine.h"

namespace tessera::detail {

class EngineImpl {
 public:
  EngineImpl(const World& world, ModelSpec spec, Options options);
  ~EngineImpl();

  const ModelSpec& spec() const { return spec_; }
  const Options& options() const { return options_; }
  Communicator& communicator() { return *communicator_; }

  void initialize(const Fill& fill);
  void set(UnitId unit, std::string_view tensor, const Fill& fill);

  void open_leaf();
  void close_leaf();
  void abandon_leaf() noexcept;
  void open_evaluation();
  void close_evaluation();
  void abandon_evaluation() noexcept;

  void open_parameters(UnitId unit);
  void close_parameters(UnitId unit);
  const void* find_parameters(UnitId unit, std::string_view tensor, DType dtype, Elements& count) const;

  runtime::GradientTarget open_gradients(UnitId unit);
  void close_gradients(UnitId unit, const runtime::GradientTarget& target, bool unwinding);
  std::span<float> find_gradients(UnitId unit, std::string_view tensor, runtime::GradientTarget& target);
  int tensor_index(UnitId unit, std::string_view tensor) const;

  double sum(std::span<const double> values);
  StepResult step(const StepOptions& options);
  void restart_step();

  std::int64_t steps() const { return applied_; }
  MemoryForecast forecast() const { return placement_.forecast; }
  StepPlan plan() const { return parameters_->plan(); }
  MemoryBytes memory() const { return ledger_->current(); }
  RankReport report() const;
  std::vector<RankReport> reports();
  Elements dirty_padding() const { return storage_->dirty_padding(spec_); }
  std::vector<UnitId> gathered() const { return parameters_->gathered(); }

  /// Tells the observer of a span that ends now.
  void span(std::string_view what, UnitId unit, runtime::Clock::time_point begin) const {
    context_->span(what, unit, begin, runtime::Clock::now());
  }
  /// What a destructor found: thrown by the next call.
  void defer(std::exception_ptr error) noexcept;

 private:
  enum class Scope { none, leaf, evaluation };

  void check_ready();  // throws what was deferred, and StepInterrupted while a step is interrupted
  void check_unit(UnitId unit) const;
  runtime::ArrivalRecord record(runtime::ArrivalKind kind, const std::string& error) const;
  void part_together();
  void arrive_after_fill(runtime::ArrivalKind kind, const std::string& what, const std::string& error);
  std::string open_ends() const;  // live leases and open scopes, in words; empty if there are none
  void interrupt(const std::string& cause) noexcept;
  std::string fill_segment(UnitId unit, std::size_t segment, int only_tensor, const Fill& fill);
  void drop_step();
  StepResult finish_step(const StepOptions& options);
  /// Runs `body`; remembers what it throws as the cause should it unwind a leaf.
  template <class Body>
  auto remember(Body body) -> decltype(body());

  ModelSpec spec_;
  Options options_;
  std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
  std::shared_ptr<Communicator> communicator_;
  runtime::Placement placement_;
  runtime::TensorGroups groups_;
  std::unique_ptr<runtime::Context> context_;
  std::unique_ptr<runtime::Storage> storage_;
  std::unique_ptr<runtime::ParameterSchedule> parameters_;
  std::unique_ptr<runtime::GradientSchedule> gradients_;
  std::unique_ptr<runtime::Update> update_;

  Scope scope_ = Scope::none;
  int leaves_ = 0;         // finished in this step, on this rank
  bool spoiled_ = false;   // an exception crossed a gradient lease of this leaf
  std::string own_error_;  // what the engine itself threw last in this leaf
  std::exception_ptr deferred_;
  std::int64_t applied_ = 0;
  runtime::Clock::time_point leaf_begin_{};
  runtime::Clock::time_point first_leaf_{};
  runtime::Clock::duration optimizer_time_{};
};

}  // namespace tessera::detail
