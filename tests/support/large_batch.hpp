// The step over the whole batch, by hand, that a data-parallel one is compared with.
#pragma once

#include <memory>

#include <torch/torch.h>
#include <tutti/nn/data_parallel.hpp>

#include "support/torch_nets.hpp"

namespace tutti::testing {

inline const auto mse = [](auto& net, const auto& rows) {
  return torch::mse_loss(net.forward(rows.data), rows.target);
};

template <typename Net, typename Loss>
double large_step(Net& net, torch::optim::Optimizer& optimizer, const Batch& batch, const Loss& loss,
                  double clip_norm = 0) {
  optimizer.zero_grad();
  const torch::Tensor value = loss(net, batch);
  value.backward();
  if (clip_norm > 0) torch::nn::utils::clip_grad_norm_(net.parameters(), clip_norm);
  optimizer.step();
  return value.template item<double>();
}

inline std::shared_ptr<torch::optim::Optimizer> make_optimizer(const torch::nn::Module& net,
                                                               const torch::optim::OptimizerOptions& options) {
  return detail::make_optimizer({torch::optim::OptimizerParamGroup(net.parameters())}, options);
}

inline Batch joined(const std::vector<Batch>& batches) {
  std::vector<torch::Tensor> data;
  std::vector<torch::Tensor> target;
  for (const Batch& batch : batches) {
    data.push_back(batch.data);
    target.push_back(batch.target);
  }
  return {torch::cat(data), torch::cat(target)};
}

}  // namespace tutti::testing
