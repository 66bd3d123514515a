// Whether replicas are the same function. The module that somebody wrote may be one whose clones are not: a member that
// is not registered, a factory that makes another one.
#pragma once

#include <vector>

#include <torch/types.h>

#include "module_parameters.hpp"
#include "shard_gradients.hpp"

namespace tutti::detail {

// What a replica came to on rows that all had.
struct ReplicaResult {
  ShardLoss loss;
  std::vector<torch::Tensor> gradients;  // by parameter
};

// A UsageError for the first that came to something else than replica 0, naming the parameters.
void refuse_other_functions(const std::vector<ModuleParameter>& parameters, const std::vector<ReplicaResult>& results);

}  // namespace tutti::detail
