// What tensors held, to be put back.
//
//   const SavedTensors buffers = saved(module.buffers());
//   ... a pass that must not change them ...
//   put_back(buffers);
#pragma once

#include <utility>
#include <vector>

#include <torch/types.h>

namespace tutti::detail {

// Tensors, and what they held.
using SavedTensors = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

inline SavedTensors saved(const std::vector<torch::Tensor>& tensors) {
  SavedTensors result;
  for (const torch::Tensor& tensor : tensors) result.emplace_back(tensor, tensor.detach().clone());
  return result;
}

// Nobody hears of it: a backward pass that is still to come does not look at them.
inline void put_back(const SavedTensors& tensors) {
  for (const auto& [tensor, value] : tensors) tensor.variable_data().copy_(value);
}

}  // namespace tutti::detail
