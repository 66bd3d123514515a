// How a run's strategy is carried out by replicas: threads of this process, and of others where there is a world.
//
//   const auto net = std::make_shared<GraphModule>(run.graph, run.seed);
//   const std::unique_ptr<torch::optim::OptimizerOptions> rule = torch_options(run.optimizer);
//   DataParallel<GraphModule> model(net, net->groups(*rule), *rule, data_parallel_options(run));
#pragma once

#include <tutti/nn/data_parallel.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

// Of Local one replica. A UsageError for a strategy that is neither Local nor DataParallel with gradients that are
// averaged in each step: by AllReduce, or by a ParameterServer that is synchronous.
DataParallelOptions data_parallel_options(const Run& run);
// Of a client's replicas, which share all parameters.
DataParallelOptions data_parallel_options(const Run& run, const strategy::DataParallel& parallel);

}  // namespace tutti
