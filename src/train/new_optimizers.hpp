// A checkpoint of an asynchronous run, for one whose optimizer is another, or trains other parameters.
//
//   const std::optional<ParameterSet> fitting = with_new_optimizers(arrays, trained_parameters(run, *net),
//   run.optimizer); server.restore(fitting ? *fitting : arrays);
#pragma once

#include <optional>

#include <tutti/base/parameter_set.hpp>
#include <tutti/kernels/optimizer.hpp>

#include "gradient_worker.hpp"

namespace tutti::detail {

// Where optimizers remembered what this one does not begin with, they begin anew, as where replicas take their steps
// together; a parameter that a replica had none of its own of is what all had. Nothing, where all fits as it is.
std::optional<ParameterSet> with_new_optimizers(const ParameterSet& arrays, const TrainedParameters& trained,
                                                const OptimizerRule& rule);

}  // namespace tutti::detail
