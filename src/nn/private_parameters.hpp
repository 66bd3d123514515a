// Parameters that each replica of a process has to itself: each is updated with the mean gradient of its replica's own
// rows, by an optimizer of the kind that the shared ones have.
//
//   on each worker:  not_finite = own.look(worker, gradients, weight);        // after backward
//   own.prepare(is_update);                                                   // once nothing can fail any more
//   on each worker:  own.update(worker);
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "kernel_optimizer.hpp"
#include "replicas.hpp"
#include "shard_gradients.hpp"

namespace tutti::detail {

struct PrivateParametersOptions {
  double clip_norm = 0;  // of each replica's own private gradients
  bool refuse_nan = true;
};

class PrivateParameters {
 public:
  // A UsageError where the optimizer is none that tutti has kernels for.
  PrivateParameters(const Replicas& replicas, std::shared_ptr<torch::optim::Optimizer> optimizer,
                    const PrivateParametersOptions& options);

  // Takes a worker's gradients in a step, the sum over its rows by weight. Returns the name of the first that is not
  // finite, where that is to be refused.
  std::string look(int worker, const ShardGradients& gradients, double weight);

  // One step more of those that go into an update; `is_update` where this is the last. Until it is called, a step can
  // be forgotten.
  void prepare(bool is_update);
  void update(int worker);
  void forget();

  // For checkpoints: which of the module's parameters are private, a replica's own variables of them, and the optimizer
  // of these.
  const std::vector<std::size_t>& parameters() const { return parameters_; }
  const torch::Tensor& variable(int worker, std::size_t index) const { return seats_[at(worker)].variables[index]; }
  torch::optim::Optimizer& optimizer(int worker) { return *seats_[at(worker)].optimizer; }
  // What was accumulated; undefined where nothing was.
  torch::Tensor& accumulated(int worker, std::size_t index) { return seats_[at(worker)].accumulated[index]; }
  double& accumulated_weight(int worker) { return seats_[at(worker)].accumulated_weight; }

 private:
  struct Seat {
    std::vector<torch::Tensor> variables;                // of the private ones
    std::shared_ptr<torch::optim::Optimizer> optimizer;  // the first one's is that of the shared parameters
    std::vector<torch::Tensor> accumulated;
    double accumulated_weight = 0;
    // Of the step in progress.
    std::vector<torch::Tensor> gradients;
    double weight = 0;
    double scale = 1;
    std::vector<PreparedUpdate> updates;
  };

  static std::size_t at(int worker) { return static_cast<std::size_t>(worker); }

  PrivateParametersOptions options_;
  std::vector<std::size_t> parameters_;
  std::vector<std::string> names_;
  std::vector<Seat> seats_;  // by worker
};

}  // namespace tutti::detail
