// How ranks come to begin with one and the same module.
#pragma once

#include <torch/nn/module.h>
#include <tutti/base/rank.hpp>
#include <tutti/collective/communicator.hpp>

namespace tutti::detail {

// All ranks call it. PeerError disagreement on all of them where parameters or buffers differ in name, shape or type,
// naming the first that does and both shapes.
void refuse_other_modules(Communicator& world, const torch::nn::Module& module);

// Everybody's tensor, of the same shape and type, gets the root's values.
void broadcast_tensor(Communicator& world, const torch::Tensor& tensor, Rank root);

}  // namespace tutti::detail
