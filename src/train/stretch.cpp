#include "stretch.hpp"

#include <utility>

#include <tutti/data/sampler.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace tutti::detail {
namespace {

// What tells of which kind the optimizer was whose state this is.
constexpr const char* kOptimizerKind = "train/optimizer_kind";

}  // namespace

std::int64_t steps_per_epoch(const Run& run, std::int64_t rows) {
  return Sampler({.rows = rows,
                  .batch_size = run.data.batch_size,
                  .seed = run.seed,
                  .drop_last = run.data.options.drop_last})
      .steps_per_epoch();
}

// Others are told with a slash in their names.
ParameterSet part_of_state(const ParameterSet& state, bool is_weights) {
  ParameterSet part;
  for (const NamedArray& array : state) {
    if ((array.name().find('/') == std::string::npos) == is_weights) part.add(array.layout(), array.bytes());
  }
  return part;
}

Stretch::Stretch(std::shared_ptr<const Run> run, const Training& around)
    : run_(std::move(run)),
      training_{.run = run_,
                .data = around.data,
                .events = around.events,
                .options = around.options,
                .weights = around.weights},
      stepper_(make_data_parallel_stepper(training_)) {}

void Stretch::go_on_from(const ParameterSet& state, bool with_optimizer) {
  const NamedArray* kind = state.find(kOptimizerKind);
  const auto own_kind = static_cast<std::int64_t>(run_->optimizer.index());
  const bool is_same = kind == nullptr || kind->values<std::int64_t>()[0] == own_kind;
  stepper_->restore(with_optimizer && is_same ? state : part_of_state(state, /*is_weights=*/true));
}

void Stretch::save(ParameterSet& state) {
  stepper_->save(state);
  if (state.empty()) return;  // of a process that has none
  const auto kind = static_cast<std::int64_t>(run_->optimizer.index());
  state.add(kOptimizerKind, {}, ConstArray(&kind, 1, DataType::int64));
}

void Stretch::begin(const PhaseSteps& steps, std::int64_t taken) {
  steps_ = steps;
  taken_ = taken;
  stepper_->begin(steps_.first + taken_);
}

double Stretch::set_rate() {
  return stepper_->set_rate(
      rate_factor(run_->schedule,
                  {.step = steps_.first + taken_, .steps = steps_.total, .steps_per_epoch = steps_.steps_per_epoch}));
}

StepResult Stretch::step(bool is_interrupted) {
  StepResult result = stepper_->step(is_interrupted);
  ++taken_;
  return result;
}

}  // namespace tutti::detail
