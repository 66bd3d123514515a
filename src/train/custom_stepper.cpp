// Custom: a coordinator of the user's, in the loop of all others.
#include <span>
#include <utility>

#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>
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

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override { return stepper_->evaluate(rows); }
  std::optional<Evaluation> evaluate_clients(std::vector<std::string>& problems) override {
    return stepper_->evaluate_clients(problems);
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
    for (const GraphParameter& parameter : run_->graph.parameters()) {
      if (arrays.find(parameter.path) == nullptr)
        throw Error(fmt::format("the coordinator '{}' saved no '{}'; add_module(arrays, *net) adds all weights", name_,
                                parameter.path));
    }
  }
  void restore(const ParameterSet& arrays) override { stepper_->restore(arrays); }
  std::vector<ArrayOnDemand> save_clients() override { return stepper_->save_clients(); }
  void restore_client(const ParameterLayout& layout, std::span<const std::byte> bytes) override {
    stepper_->restore_client(layout, bytes);
  }

 private:
  std::shared_ptr<const Run> run_;
  std::string name_;
  CoordinatorContext context_;
  std::unique_ptr<Stepper> stepper_;
};

}  // namespace

std::unique_ptr<Stepper> make_custom_stepper(const Training& training) {
  return std::make_unique<CustomStepper>(training);
}

}  // namespace tutti::detail
