// What becomes of the parameter sets that children have learnt: a pure function of them.
#pragma once

#include <memory>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/distributed_model_parameters_coordinator.hpp>

namespace tutti::detail {

struct ChildParameters {
  std::shared_ptr<const ParameterSet> values;
  ChildUpdate update;
};

// Whatever order they come in, the bits are the same: sets of one child with the same weight and score are put in the
// order of their bytes. A mean is that of the numbers themselves, with twice the digits of a double on the way, rounded
// once to the type of the array, and never outside of what it is of; that of integers is the nearest one, of halves the
// one farther from 0. `merged` has the layout of all sets, of which there is one at least. Weights are above 0.
void merge_children(const Merger& merger, std::vector<ChildParameters> sets, ParameterSet& merged);

}  // namespace tutti::detail
