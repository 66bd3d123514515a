// A replica of an asynchronous run: it computes gradients of the rows of a task, with the parameters that it is given.
//
//   GradientWorker worker(run, net, train_rows, {.replica = 1, .shards = 4});
//   GradientReply reply = worker.compute(work->number, *work->parameters.parameters);
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <tutti/data/loader.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/train/run.hpp>

#include "asynchronous_server.hpp"

namespace tutti::detail {

// Parameters that are trained, by name, and what their nodes multiply the learning rate by. Those that the loss does
// not depend on are not among them: no optimizer is to shrink them.
struct TrainedParameters {
  std::vector<std::pair<std::string, torch::Tensor>> tensors = {};
  std::vector<double> rate_factors = {};
};
TrainedParameters trained_parameters(const Run& run, const GraphModule& net);
ParameterSet values_of(const TrainedParameters& parameters);

struct GradientWorkerOptions {
  int replica = 0;  // among those of all processes
  int shards = 1;   // of a batch
};

// One thread at a time computes.
class GradientWorker {
 public:
  GradientWorker(std::shared_ptr<const Run> run, std::shared_ptr<GraphModule> net, std::shared_ptr<const Dataset> rows,
                 const GradientWorkerOptions& options);

  GradientReply compute(std::int64_t task, const ParameterSet& parameters);

  // As they were after the last task: any thread.
  ParameterSet buffers() const;
  // All that tasks do not bring: buffers, and parameters that are frozen.
  void restore(const ParameterSet& arrays);

 private:
  GradientReply compute_gradients(std::int64_t step, int shard, const DataBatch& batch, const ParameterSet& parameters);
  void keep_buffers();

  std::shared_ptr<const Run> run_;
  std::shared_ptr<GraphModule> net_;
  std::shared_ptr<const Dataset> rows_;
  int replica_;
  int shards_;
  TrainedParameters trained_;
  Sampler sampler_;
  mutable std::mutex mutex_;
  ParameterSet buffers_;
};

}  // namespace tutti::detail
