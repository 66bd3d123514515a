// How ranks come to begin with one and the same module.
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <tutti/base/rank.hpp>
#include <tutti/collective/communicator.hpp>

namespace tutti::detail {

struct AgreedOption {
  std::string name;
  std::string value;
};

// All ranks call it. PeerError disagreement on all of them where parameters or buffers differ in name, shape or type,
// or options in value: naming the first that does, and what both have.
void refuse_other_modules(Communicator& world, const torch::nn::Module& module,
                          const std::vector<AgreedOption>& options);

// Everybody's optimizer, of the same kind over the same parameters, gets the root's state and options.
void broadcast_optimizer(Communicator& world, torch::optim::Optimizer& optimizer, Rank root);

// Everybody's tensor, of the same shape and type, gets the root's values.
void broadcast_tensor(Communicator& world, const torch::Tensor& tensor, Rank root);

}  // namespace tutti::detail
