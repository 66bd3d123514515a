#include <tutti/coordinate/distributed_model_parameters_coordinator.hpp>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_layouts.hpp>
#include <tutti/coordinate/aggregation.hpp>
#include <tutti/coordinate/outer_optimizer.hpp>
#include <tutti/coordinate/update_check.hpp>

#include "update_thread.hpp"

namespace tutti {
namespace {

struct ChildParameters {
  std::shared_ptr<const ParameterSet> values;
  ChildUpdate update;
};

// The change of the main model by which it becomes what the merger makes of the sets.
Change merged_change(const Merger& merger, const std::vector<ChildParameters>& sets, const ParameterSet& main) {
  std::vector<ClientUpdate> updates;
  for (const ChildParameters& its : sets)
    updates.push_back({.client = its.update.child, .values = its.values.get(), .base = &main});
  if (std::holds_alternative<MedianOfChildren>(merger)) return aggregate(strategy::Median{}, updates);
  if (std::holds_alternative<WeightedAverage>(merger)) {
    for (std::size_t i = 0; i < sets.size(); ++i) updates[i].weight = sets[i].update.weight;
  }
  return aggregate(strategy::FedAvg{}, updates);
}

const ChildParameters& best_of(const std::vector<ChildParameters>& sets) {
  return *std::ranges::min_element(
      sets, {}, [](const ChildParameters& its) { return std::tuple(-its.update.score, its.update.child); });
}

}  // namespace

struct DistributedModelParametersCoordinator::Parts {
  // Outlived by nothing but a thread that hangs, which has a share in it.
  struct Merging {
    explicit Merging(const ParametersCoordinatorOptions& its) : options(its) {}

    void take(ChildParameters& its) {
      const std::lock_guard lock(mutex);
      group.push_back(std::move(its));
      if (std::ssize(group) >= options.merge_every) merge();
    }

    void finish() {
      const std::lock_guard lock(mutex);
      if (!group.empty()) merge();
    }

    void merge() {
      model.change([&](ParameterSet& main, std::int64_t) {
        if (std::holds_alternative<BestOfChildren>(options.merger))
          main = *best_of(group).values;
        else
          OuterOptimizer(strategy::FedAvg{}).step(main, merged_change(options.merger, group, main));
      });
      group.clear();
    }

    std::shared_ptr<const ParameterSet> known_layout() {
      const std::lock_guard lock(mutex);
      return layout;
    }

    void refuse_unless_good(const ParameterSet& parameters) {
      const std::shared_ptr<const ParameterSet> expected = known_layout();
      if (!expected) return;
      if (const std::string difference = expected->layout_difference(parameters); !difference.empty())
        throw UsageError(fmt::format("these parameters are of another model: {}", difference));
    }

    const ParametersCoordinatorOptions options;
    MainModel model;
    std::mutex mutex;
    std::shared_ptr<const ParameterSet> layout;
    std::vector<ChildParameters> group;
  };

  explicit Parts(const ParametersCoordinatorOptions& options)
      : merging(std::make_shared<Merging>(options)),
        thread({.capacity = options.capacity,
                .take = [merging = merging](ChildParameters& its) { merging->take(its); },
                .finish = [merging = merging] { merging->finish(); },
                .merge = {}}) {
    if (options.merge_every < 1)
      throw UsageError(fmt::format("merge_every: expected at least 1, found {}", options.merge_every));
    if (options.capacity < 1) throw UsageError("capacity: expected room for at least one set, found 0");
  }

  void take_model(const ParameterSet& parameters) const {
    if (parameters.empty()) throw UsageError("expected parameters, found a set without arrays");
    refuse_not_finite(parameters);
    merging->refuse_unless_good(parameters);
    const std::lock_guard lock(merging->mutex);
    if (!merging->layout)
      merging->layout = std::make_shared<const ParameterSet>(set_with_layouts(layout_words(parameters)));
  }

  static void refuse_not_finite(const ParameterSet& parameters) {
    for (const NamedArray& array : parameters) {
      if (!has_finite_numbers(array))
        throw UsageError(fmt::format("\"{}\" has numbers that are infinite or not a number", array.name()));
    }
  }

  std::shared_ptr<Merging> merging;
  detail::UpdateThread<ChildParameters> thread;
};

DistributedModelParametersCoordinator::DistributedModelParametersCoordinator(ParametersCoordinatorOptions options)
    : parts_(std::make_unique<Parts>(options)) {}

DistributedModelParametersCoordinator::~DistributedModelParametersCoordinator() = default;

void DistributedModelParametersCoordinator::set_model_parameters(ParameterSet parameters) {
  parts_->take_model(parameters);
  parts_->merging->model.set(std::move(parameters));
}

void DistributedModelParametersCoordinator::set_model_parameters(std::shared_ptr<const ParameterSet> parameters) {
  if (!parameters) throw UsageError("expected parameters, found none");
  parts_->take_model(*parameters);
  parts_->merging->model.set(std::move(parameters));
}

ParameterSet DistributedModelParametersCoordinator::get_model_parameters() const {
  const ModelSnapshot now = snapshot();
  return now.parameters ? *now.parameters : ParameterSet();
}

ModelSnapshot DistributedModelParametersCoordinator::snapshot() const { return parts_->merging->model.snapshot(); }

std::int64_t DistributedModelParametersCoordinator::version() const { return parts_->merging->model.version(); }

void DistributedModelParametersCoordinator::add_model_parameters(std::shared_ptr<const ParameterSet> parameters,
                                                                 const ChildUpdate& update) {
  if (!parameters) throw UsageError("expected parameters, found none");
  if (!parts_->merging->known_layout()) throw UsageError("there are no parameters yet to merge into");
  parts_->merging->refuse_unless_good(*parameters);
  Parts::refuse_not_finite(*parameters);
  if (!(update.weight > 0) || !std::isfinite(update.weight))
    throw UsageError(fmt::format("child {}: expected a weight above 0, found {}", update.child, update.weight));
  if (std::isnan(update.score))
    throw UsageError(fmt::format("child {}: expected a score, found {}", update.child, update.score));
  const ParametersCoordinatorOptions& options = parts_->merging->options;
  if (!parts_->thread.add({std::move(parameters), update}, options.deadline))
    throw Error(
        fmt::format("{} sets wait already, and none was merged for {}", options.capacity, to_string(options.deadline)));
}

void DistributedModelParametersCoordinator::add_model_parameters(ParameterSet parameters, const ChildUpdate& update) {
  add_model_parameters(std::make_shared<const ParameterSet>(std::move(parameters)), update);
}

CoordinatorRun DistributedModelParametersCoordinator::start() {
  if (parts_->merging->model.empty())
    throw UsageError("there are no parameters: expected set_model_parameters() first");
  return parts_->thread.start();
}

void DistributedModelParametersCoordinator::stop() { parts_->thread.stop(parts_->merging->options.deadline); }

std::size_t DistributedModelParametersCoordinator::clear() {
  const std::size_t waiting = parts_->thread.clear();
  const std::lock_guard lock(parts_->merging->mutex);
  return waiting + std::exchange(parts_->merging->group, {}).size();
}

std::size_t DistributedModelParametersCoordinator::pending() const {
  const std::lock_guard lock(parts_->merging->mutex);
  return parts_->thread.pending() + parts_->merging->group.size();
}

}  // namespace tutti
