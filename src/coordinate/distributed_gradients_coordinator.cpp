#include <tutti/coordinate/distributed_gradients_coordinator.hpp>

#include <memory>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "gradient_applier.hpp"
#include "update_thread.hpp"

namespace tutti {

struct DistributedGradientsCoordinator::Parts {
  using Thread = detail::UpdateThread<detail::GoodGradients>;

  Parts(std::unique_ptr<UpdateRule> rule, const GradientsCoordinatorOptions& its)
      : options(its),
        applier(std::make_shared<detail::GradientApplier>(std::move(rule), its.mode, its.staleness)),
        thread({.capacity = its.capacity,
                .noun = "sets of gradients",
                .deadline = its.deadline,
                .take = [applier = applier](detail::GoodGradients& gradients,
                                            std::int64_t&) { applier->apply(gradients); },
                .merge = its.when_full == WhenFull::merge ? detail::merge_gradients : nullptr}) {
    if (its.capacity < 1) throw UsageError("capacity: expected room for at least one set of gradients, found 0");
  }

  GradientsCoordinatorOptions options;
  std::shared_ptr<detail::GradientApplier> applier;  // a thread that hangs outlives this
  Thread thread;
};

DistributedGradientsCoordinator::DistributedGradientsCoordinator(const OptimizerRule& rule,
                                                                 GradientsCoordinatorOptions options)
    : DistributedGradientsCoordinator(make_update_rule(rule), options) {}

DistributedGradientsCoordinator::DistributedGradientsCoordinator(std::unique_ptr<UpdateRule> rule,
                                                                 GradientsCoordinatorOptions options)
    : parts_(std::make_unique<Parts>(std::move(rule), options)) {}

DistributedGradientsCoordinator::~DistributedGradientsCoordinator() = default;

void DistributedGradientsCoordinator::set_parameters(GradientChangeMode mode) { parts_->applier->set_mode(mode); }

void DistributedGradientsCoordinator::set_rate_factor(double factor) { parts_->applier->set_rate_factor(factor); }

void DistributedGradientsCoordinator::set_model_parameters(ParameterSet parameters) {
  parts_->applier->set_model(std::move(parameters));
}

void DistributedGradientsCoordinator::set_model_parameters(std::shared_ptr<const ParameterSet> parameters) {
  parts_->applier->set_model(std::move(parameters));
}

ParameterSet DistributedGradientsCoordinator::get_model_parameters() const {
  const ModelSnapshot now = snapshot();
  return now.parameters ? *now.parameters : ParameterSet();
}

ModelSnapshot DistributedGradientsCoordinator::snapshot() const { return parts_->applier->model().snapshot(); }

std::int64_t DistributedGradientsCoordinator::version() const { return parts_->applier->model().version(); }

void DistributedGradientsCoordinator::add_gradients(std::shared_ptr<const ParameterSet> gradients,
                                                    const GradientOrigin& origin) {
  detail::GoodGradients good = parts_->applier->good(std::move(gradients), origin);
  const GradientsCoordinatorOptions& options = parts_->options;
  parts_->thread.add(std::move(good), options.when_full == WhenFull::block ? options.deadline : Duration::zero());
}

void DistributedGradientsCoordinator::add_gradients(ParameterSet gradients, const GradientOrigin& origin) {
  add_gradients(std::make_shared<const ParameterSet>(std::move(gradients)), origin);
}

void DistributedGradientsCoordinator::add_gradients(ConstArray gradients, const GradientOrigin& origin) {
  const std::shared_ptr<const ParameterSet> layout = parts_->applier->layout();
  if (!layout) throw UsageError("there are no parameters yet that gradients could change");
  if (layout->size() != 1)
    throw UsageError(
        fmt::format("the model has {} arrays: expected gradients of all of them, by name", layout->size()));
  const ParameterLayout& its = (*layout)[0].layout();
  if (gradients.type() != its.type || gradients.length() != (*layout)[0].length())
    throw UsageError(fmt::format("these gradients are not of this model: \"{}\" is {} [{}], expected {}", its.name,
                                 to_string(gradients.type()), gradients.length(), to_string(its)));
  ParameterSet set;
  set.add(its.name, its.shape, gradients);
  add_gradients(std::move(set), origin);
}

CoordinatorRun DistributedGradientsCoordinator::start() {
  if (parts_->applier->model().empty())
    throw UsageError("there are no parameters: expected set_model_parameters() first");
  return parts_->thread.start();
}

void DistributedGradientsCoordinator::stop() { parts_->thread.stop(parts_->options.deadline); }

std::size_t DistributedGradientsCoordinator::clear_gradients() { return parts_->thread.clear(); }

std::size_t DistributedGradientsCoordinator::pending() const { return parts_->thread.pending(); }

StalenessCounts DistributedGradientsCoordinator::staleness() const { return parts_->applier->staleness(); }

void DistributedGradientsCoordinator::save(ParameterSet& arrays) const {
  parts_->applier->save(arrays, "coordinator/");
}

void DistributedGradientsCoordinator::restore(const ParameterSet& arrays) {
  parts_->applier->restore(arrays, "coordinator/", Restored::all);
}

}  // namespace tutti
