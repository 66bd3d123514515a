// A training loop over any GradientSync: the module's gradients in one array, one round a step.
//
//   void train(Net net, tutti::GradientSync& sync) {             // Local, Threaded, Collective, or one's own
//     tutti::SyncedModule model(net.ptr(), sync);
//     torch::optim::SGD optimizer(net->parameters(), 0.1);
//     for (auto& batch : *my_share) {
//       net->zero_grad(true);
//       model.backward(cross_entropy(net->forward(batch.data), batch.target));     // the mean over all workers
//       optimizer.step();
//     }
//   }
//
// Workers begin with equal parameters. DistributedModule does more: it shares the parameters, exchanges gradients while
// backward goes on, and lets workers come and go.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>
#include <tutti/sync/gradient_buffers.hpp>
#include <tutti/sync/gradient_sync.hpp>

namespace tutti {

class SyncedModule {
 public:
  // The sync must outlive it. A UsageError where parameters are of several types.
  SyncedModule(std::shared_ptr<torch::nn::Module> module, GradientSync& sync);

  // Gradients become the mean over all workers, by weight; without one all count the same. All workers give one, or
  // none does. A parameter that only other workers' losses depend on gets theirs.
  void backward(const torch::Tensor& loss, std::optional<double> weight = {});

 private:
  std::shared_ptr<torch::nn::Module> module_;
  GradientSync& sync_;
  std::vector<torch::Tensor> parameters_;
  torch::Tensor memory_;
  std::vector<torch::Tensor> views_;  // of it, laid out as the parameters
  std::optional<GradientBuffers> gradients_;
};

}  // namespace tutti
