#include <tutti/coordinate/distributed_gradients_coordinator.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "gradient_applier.hpp"
#include "update_thread.hpp"

namespace tutti {
namespace {

struct Gradients {
  std::shared_ptr<const ParameterSet> values;
  GradientOrigin origin;
  std::shared_ptr<ParameterSet> own;  // the same, where they were merged and may be changed
};

template <typename T>
T times(T value, double factor) {
  if constexpr (requires { value.to_float(); })
    return T::from_float(static_cast<float>(static_cast<double>(value.to_float()) * factor));
  else
    return static_cast<T>(static_cast<double>(value) * factor);
}

template <typename T>
T sum(T a, T b) {
  if constexpr (requires { a.to_float(); })
    return T::from_float(a.to_float() + b.to_float());
  else
    return static_cast<T>(a + b);
}

void multiply(ParameterSet& set, double factor) {
  if (factor == 1) return;
  for (NamedArray& array : set) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      for (T& value : array.values<T>()) value = times(value, factor);
    });
  }
}

// Both times what they count for. They are as old as the older one.
void merge_gradients(Gradients& newest, Gradients&& added) {
  if (!newest.own) {
    newest.own = std::make_shared<ParameterSet>(*newest.values);
    newest.values = newest.own;
  }
  multiply(*newest.own, newest.origin.weight);
  for (std::size_t i = 0; i < newest.own->size(); ++i) {
    dispatch((*newest.own)[i].type(), [&]<typename T>(std::type_identity<T>) {
      const std::span<T> to = (*newest.own)[i].values<T>();
      const std::span<const T> from = (*added.values)[i].values<T>();
      for (std::size_t j = 0; j < to.size(); ++j) to[j] = sum(to[j], times(from[j], added.origin.weight));
    });
  }
  newest.origin.weight = 1;
  const ModelSnapshot& base = added.origin.base;
  if (base.parameters && (!newest.origin.base.parameters || base.version < newest.origin.base.version))
    newest.origin.base = base;
}

}  // namespace

struct DistributedGradientsCoordinator::Parts {
  using Thread = detail::UpdateThread<Gradients>;

  Parts(std::unique_ptr<UpdateRule> rule, GradientsCoordinatorOptions its)
      : options(its),
        applier(std::make_shared<detail::GradientApplier>(std::move(rule), its.mode, its.staleness)),
        thread(
            {.capacity = its.capacity,
             .take = [applier = applier](Gradients& gradients) { applier->apply(*gradients.values, gradients.origin); },
             .finish = {},
             .merge = its.when_full == WhenFull::merge ? merge_gradients : Thread::Merge()}) {
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
  if (!gradients) throw UsageError("expected gradients, found none");
  parts_->applier->refuse_unless_good(*gradients, origin);
  const GradientsCoordinatorOptions& options = parts_->options;
  const bool waits = options.when_full == WhenFull::block;
  const auto added =
      parts_->thread.add({std::move(gradients), origin, nullptr}, waits ? options.deadline : Duration::zero());
  if (added) return;
  throw Error(fmt::format("{} sets of gradients wait already{}", options.capacity,
                          waits ? fmt::format(", and none was applied for {}", to_string(options.deadline)) : ""));
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
  parts_->applier->restore(arrays, "coordinator/");
}

}  // namespace tutti
