// Holds the main model's parameters and merges into them whole parameter sets that children have learnt.
//
//   DistributedModelParametersCoordinator coordinator({.merge_every = 4, .merger = WeightedAverage{}});
//   coordinator.set_model_parameters(parameters);
//   coordinator.start();
//   // on each child's thread:
//   const ModelSnapshot now = coordinator.snapshot();
//   coordinator.add_model_parameters(learnt_from(*now.parameters), {.child = 3, .weight = rows});
//   // in the end:
//   coordinator.stop();                          // merges what is left, too
//
// With every so many sets the main model becomes what the merger makes of them, whatever it was before. Each set is
// merged once; of those that come at the same time, which are merged together depends on who was faster, and within a
// merge the order in which they came does not matter to any bit. Sets that are alike merge to themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>

#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/coordinator_run.hpp>
#include <tutti/coordinate/main_model.hpp>

namespace tutti {

// Each child counts as one.
struct Average {
  friend bool operator==(const Average&, const Average&) = default;
};
// By what the children say that they count for.
struct WeightedAverage {
  friend bool operator==(const WeightedAverage&, const WeightedAverage&) = default;
};
// Of each number.
struct MedianOfChildren {
  friend bool operator==(const MedianOfChildren&, const MedianOfChildren&) = default;
};
// The set with the highest score; of equal ones that of the child with the lowest number.
struct BestOfChildren {
  friend bool operator==(const BestOfChildren&, const BestOfChildren&) = default;
};

using Merger = std::variant<Average, WeightedAverage, MedianOfChildren, BestOfChildren>;

struct ParametersCoordinatorOptions {
  std::int64_t merge_every = 10;  // sets
  Merger merger = Average{};
  // Of the queue: where it is full children wait. Beside it, up to merge_every - 1 sets wait for others to be merged
  // with.
  std::size_t capacity = 64;
  // For room, whether it runs or not; for stop(); and in the end for a merge that goes on.
  Duration deadline = kDefaultDeadline;
};

struct ChildUpdate {
  std::int64_t child = 0;
  double weight = 1;  // of WeightedAverage
  double score = 0;   // of BestOfChildren: the higher, the better
};

// Any thread may call any of these.
class DistributedModelParametersCoordinator {
 public:
  explicit DistributedModelParametersCoordinator(ParametersCoordinatorOptions options = {});
  // Sets that still wait are dropped: stop() merges them. The run ends with an Error that says how many; who waits for
  // room gets one, too.
  ~DistributedModelParametersCoordinator();
  DistributedModelParametersCoordinator(const DistributedModelParametersCoordinator&) = delete;
  DistributedModelParametersCoordinator& operator=(const DistributedModelParametersCoordinator&) = delete;

  // As of DistributedGradientsCoordinator.
  void set_model_parameters(ParameterSet parameters);
  void set_model_parameters(std::shared_ptr<const ParameterSet> parameters);
  ParameterSet get_model_parameters() const;
  ModelSnapshot snapshot() const;
  std::int64_t version() const;  // how often the model has changed: by merges, and by being set anew

  // A UsageError for a set that is not of this model or not finite, and for a weight that is not above 0 or a score
  // that is no number; an Error where there is no room for as long as the deadline says, and at once where there will
  // be none because the run has failed.
  void add_model_parameters(std::shared_ptr<const ParameterSet> parameters, const ChildUpdate& update = {});
  void add_model_parameters(ParameterSet parameters, const ChildUpdate& update = {});

  // As of DistributedGradientsCoordinator. Where a merge fails the run ends with it: its sets are gone, and the model
  // is as it was before.
  CoordinatorRun start();
  // Merges what was added before, what is left over included.
  void stop();
  // Sets that wait are dropped; returns how many.
  std::size_t clear();
  // How many sets were added and are not merged yet.
  std::size_t pending() const;

 private:
  struct Parts;

  std::unique_ptr<Parts> parts_;
};

}  // namespace tutti
