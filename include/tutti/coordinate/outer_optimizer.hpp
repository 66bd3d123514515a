// How the server's model changes by what the clients of a round have learnt: one core for all rules.
//
//   OuterOptimizer optimizer(strategy::FedYogi{});
//   optimizer.step(parameters, change);                  // change: aggregate(), coordinate/aggregation.hpp
//
// The mean of the clients' changes is taken as a gradient's negative. FedAvg, FedProx and the rules that bear hostile
// clients add it; FedAvgM adds a momentum of it; FedAdam, FedYogi and FedAdagrad divide by what they have seen, without
// a correction of the first steps and from tau^2 on, as in Reddi et al., 2021.
#pragma once

#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/aggregation.hpp>
#include <tutti/strategy/federated.hpp>

namespace tutti {

// One thread at a time.
class OuterOptimizer {
 public:
  // Arrays that are not `is_trained` (buffers; by array, all where empty) and integers are changed by the mean itself.
  explicit OuterOptimizer(const strategy::FederatedAggregation& rule, std::vector<bool> is_trained = {});

  // parameters += what becomes of the change, in double and rounded once; where that is 0 nothing changes, to the bit,
  // also of what is not finite. Integers change by the nearest integer, and end where their type does. A UsageError,
  // and nothing is changed, where the change has another shape.
  void step(ParameterSet& parameters, const Change& change);

  // Moments, for checkpoints: "<prefix>momentum/<name>" and "<prefix>variance/<name>", in float64. Where no
  // step was taken there are none, and restoring none makes a new optimizer; a UsageError where only some are there.
  void save(ParameterSet& arrays, const ParameterSet& parameters, const std::string& prefix) const;
  void restore(const ParameterSet& arrays, const ParameterSet& parameters, const std::string& prefix);

 private:
  strategy::FederatedAggregation rule_;
  std::vector<bool> is_trained_;
  Change momentum_;  // empty before the first step, and where the rule has none
  Change variance_;
};

}  // namespace tutti
