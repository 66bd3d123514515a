#include <tutti/coordinate/distributed_model_parameters_coordinator.hpp>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/parameter_layouts.hpp>
#include <tutti/coordinate/update_check.hpp>

#include "child_merge.hpp"
#include "update_thread.hpp"

namespace tutti {
namespace {

constexpr double kMostWeight = 1e200;

}  // namespace

struct DistributedModelParametersCoordinator::Parts {
  // Outlived by nothing but a thread that hangs, which has a share in it.
  class Merging {
   public:
    explicit Merging(const ParametersCoordinatorOptions& its) : options(its) {}

    // On the coordinator's thread. How many are merged, or lost with what fails.
    void take(detail::ChildParameters& its, std::int64_t& settled) {
      settled = 0;
      std::vector<detail::ChildParameters> full;
      {
        const std::lock_guard lock(mutex_);
        group_.push_back(std::move(its));
        if (std::ssize(group_) < options.merge_every) return;
        full = std::exchange(group_, {});
      }
      settled = std::ssize(full);
      merge(full);
    }

    void merge_rest(std::int64_t& settled) {
      std::vector<detail::ChildParameters> rest;
      {
        const std::lock_guard lock(mutex_);
        rest = std::exchange(group_, {});
      }
      settled = std::ssize(rest);
      if (!rest.empty()) merge(rest);
    }

    std::int64_t drop() {
      const std::lock_guard lock(mutex_);
      return std::ssize(std::exchange(group_, {}));
    }

    void take_layout(const ParameterSet& parameters) {
      if (parameters.empty()) throw UsageError("expected parameters, found a set without arrays");
      refuse_not_finite(parameters);
      const std::lock_guard lock(mutex_);
      if (!layout_)
        layout_ = std::make_shared<const ParameterSet>(set_with_layouts(layout_words(parameters)));
      else
        refuse_another(*layout_, parameters);
    }

    void refuse_unless_good(const ParameterSet& parameters) const {
      std::shared_ptr<const ParameterSet> expected;
      {
        const std::lock_guard lock(mutex_);
        expected = layout_;
      }
      if (!expected) throw UsageError("there are no parameters yet to merge into");
      refuse_another(*expected, parameters);
      refuse_not_finite(parameters);
    }

    const ParametersCoordinatorOptions options;
    MainModel model;

   private:
    static void refuse_another(const ParameterSet& expected, const ParameterSet& found) {
      if (const std::string difference = expected.layout_difference(found); !difference.empty())
        throw UsageError(fmt::format("these parameters are of another model: {}", difference));
    }

    static void refuse_not_finite(const ParameterSet& parameters) {
      for (const NamedArray& array : parameters) {
        if (!has_finite_numbers(array))
          throw UsageError(fmt::format("\"{}\" has numbers that are infinite or not a number", array.name()));
      }
    }

    void merge(const std::vector<detail::ChildParameters>& group) {
      model.change([&](ParameterSet& main, std::int64_t) { detail::merge_children(options.merger, group, main); });
    }

    mutable std::mutex mutex_;
    std::shared_ptr<const ParameterSet> layout_;
    std::vector<detail::ChildParameters> group_;
  };

  explicit Parts(const ParametersCoordinatorOptions& options)
      : merging(std::make_shared<Merging>(options)),
        thread({.capacity = options.capacity,
                .noun = "sets",
                .deadline = options.deadline,
                .take = [merging = merging](detail::ChildParameters& its,
                                            std::int64_t& settled) { merging->take(its, settled); },
                .finish = [merging = merging](std::int64_t& settled) { merging->merge_rest(settled); },
                .drop_kept = [merging = merging] { return merging->drop(); }}) {
    if (options.merge_every < 1)
      throw UsageError(fmt::format("merge_every: expected at least 1, found {}", options.merge_every));
    if (options.capacity < 1) throw UsageError("capacity: expected room for at least one set, found 0");
  }

  std::shared_ptr<Merging> merging;
  detail::UpdateThread<detail::ChildParameters> thread;
};

DistributedModelParametersCoordinator::DistributedModelParametersCoordinator(ParametersCoordinatorOptions options)
    : parts_(std::make_unique<Parts>(options)) {}

DistributedModelParametersCoordinator::~DistributedModelParametersCoordinator() = default;

void DistributedModelParametersCoordinator::set_model_parameters(ParameterSet parameters) {
  parts_->merging->take_layout(parameters);
  parts_->merging->model.set(std::move(parameters));
}

void DistributedModelParametersCoordinator::set_model_parameters(std::shared_ptr<const ParameterSet> parameters) {
  if (!parameters) throw UsageError("expected parameters, found none");
  parts_->merging->take_layout(*parameters);
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
  parts_->merging->refuse_unless_good(*parameters);
  if (!(update.weight > 0 && update.weight <= kMostWeight))
    throw UsageError(fmt::format("child {}: expected a weight above 0, up to {:.0e}, found {}", update.child,
                                 kMostWeight, update.weight));
  if (std::isnan(update.score))
    throw UsageError(fmt::format("child {}: expected a score, found {}", update.child, update.score));
  parts_->thread.add({std::move(parameters), update}, parts_->merging->options.deadline);
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

std::size_t DistributedModelParametersCoordinator::clear() { return parts_->thread.clear(); }

std::size_t DistributedModelParametersCoordinator::pending() const { return parts_->thread.pending(); }

}  // namespace tutti
