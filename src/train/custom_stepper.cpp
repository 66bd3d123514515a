// Custom: a coordinator of the user's, in the loop of all others.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/coordinator.hpp>

#include "training.hpp"

namespace tutti::detail {
namespace {

class CustomStepper final : public Stepper {
 public:
  explicit CustomStepper(const Training& training)
      : run_(training.run),
        name_(std::get<strategy::Custom>(run_->graph.effective_strategy()).coordinator),
        context_{.run = training.run,
                 .data = training.data,
                 .world = training.options.world,
                 .events = training.events,
                 .make_net = [&training] { return made_net(*training.run, training.weights, training.options.from); }},
        stepper_(run_->coordinator.make(context_)) {
    if (!stepper_) throw UsageError(fmt::format("the coordinator '{}' made no stepper", name_));
  }

  std::string describe() const override { return stepper_->describe(); }
  std::vector<std::string> notes() const override { return stepper_->notes(); }
  std::vector<std::string> warnings() const override { return stepper_->warnings(); }
  void begin(std::int64_t steps_taken) override { stepper_->begin(steps_taken); }
  double set_rate(double factor) override { return stepper_->set_rate(factor); }

  // Whoever is interrupted ends the run, whether the coordinator looks at it or not.
  StepResult step(bool is_interrupted) override {
    StepResult result = stepper_->step(is_interrupted);
    std::int64_t ends = is_interrupted || result.is_interrupted ? 1 : 0;
    if (context_.world != nullptr)
      all_reduce(*context_.world, std::span(&ends, 1), {.op = ReduceOp::max, .deadline = run_->train.deadline});
    result.is_interrupted = ends > 0;
    return result;
  }

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override { return whole(stepper_->evaluate(rows)); }
  std::optional<Evaluation> evaluate_clients(std::vector<std::string>& problems) override {
    std::optional<Evaluation> evaluation = stepper_->evaluate_clients(problems);
    return evaluation ? whole(std::move(*evaluation)) : evaluation;
  }

  // A checkpoint without the weights would be found out by whoever wants to use it, when it is too late.
  void save(ParameterSet& arrays) override {
    stepper_->save(arrays);
    for (const NamedArray& array : arrays) {
      if (array.name().starts_with(kOfClients))
        throw Error(
            fmt::format("the coordinator '{}' saved '{}', and names that begin with '{}' are for save_clients()", name_,
                        array.name(), kOfClients));
    }
    if (context_.world != nullptr && context_.world->rank() != Rank{0}) return;
    if (expected_.empty()) {
      ParameterSet all;
      add_module(all, *context_.make_net());
      for (const NamedArray& array : all) expected_.push_back(array.layout());
    }
    for (const ParameterLayout& layout : expected_) {
      const NamedArray* its = arrays.find(layout.name);
      if (its == nullptr)
        throw Error(fmt::format("the coordinator '{}' saved no '{}'; add_module(arrays, *net) adds all weights", name_,
                                layout.name));
      if (its->layout() != layout)
        throw Error(fmt::format("the coordinator '{}' saved '{}' as {}, expected {}", name_, layout.name,
                                to_string(its->layout()), to_string(layout)));
    }
  }
  void restore(const ParameterSet& arrays) override { stepper_->restore(arrays); }
  std::vector<ArrayOnDemand> save_clients() override { return stepper_->save_clients(); }
  void restore_client(const ParameterLayout& layout, std::span<const std::byte> bytes) override {
    stepper_->restore_client(layout, bytes);
  }

 private:
  // What tells the best is among them.
  Evaluation whole(Evaluation evaluation) const {
    for (const RunMetric& metric : run_->metrics) {
      if (std::ranges::find(evaluation.metrics, metric.name, &NamedNumber::name) == evaluation.metrics.end())
        throw Error(
            fmt::format("the coordinator '{}' evaluated without '{}', which is among the run's metrics; "
                        "an Evaluator has them all",
                        name_, metric.name));
    }
    return evaluation;
  }

  std::shared_ptr<const Run> run_;
  std::string name_;
  CoordinatorContext context_;
  std::unique_ptr<Stepper> stepper_;
  std::vector<ParameterLayout> expected_;  // in a checkpoint; found out with the first
};

}  // namespace

std::unique_ptr<Stepper> make_custom_stepper(const Training& training) {
  return std::make_unique<CustomStepper>(training);
}

}  // namespace tutti::detail
