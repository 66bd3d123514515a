// A torch optimizer whose step is carried out by tutti's kernels, slice by slice, on any thread. Its state stays where
// torch keeps it, so that it can be saved, loaded and scheduled as ever.
//
//   if (has_kernels(optimizer)) {
//     std::vector<PreparedUpdate> updates = prepare_updates(optimizer, parameters, has_gradient);
//     ... on each thread: update(updates[i], slice, gradient, scale);
//   }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <tutti/base/chunk.hpp>
#include <tutti/base/data_type.hpp>
#include <tutti/kernels/optimizer.hpp>

namespace tutti::detail {

// float32 or float64; a UsageError names the parameter otherwise.
DataType data_type_of_parameter(const std::string& name, const torch::Tensor& parameter);

// Under what torch keeps the state of a parameter.
std::string state_key(const torch::Tensor& parameter);

// Exactly one of torch's own SGD, Adam, AdamW, RMSprop, Adagrad: what is derived from them may step otherwise.
bool has_kernels(const torch::optim::Optimizer& optimizer);

// One parameter's part in a step.
struct PreparedUpdate {
  bool is_due = false;  // it has a gradient, and belongs to the optimizer
  OptimizerRule rule = {};
  std::uint64_t step = 1;
  DataType type = DataType::float32;
  std::byte* parameter = nullptr;
  std::array<std::byte*, 3> state = {};
};

// A UsageError names an option of one of its groups that cannot be. Nothing is said about optimizers without kernels.
void refuse_unless_possible(const torch::optim::Optimizer& optimizer);

// Makes the state that is not there yet, and counts the step. A UsageError where options cannot be, a parameter is
// neither float32 nor float64, or a state is not that of its parameter; then nothing was done.
std::vector<PreparedUpdate> prepare_updates(torch::optim::Optimizer& optimizer,
                                            const std::vector<torch::Tensor>& parameters,
                                            const std::vector<bool>& has_gradient);

// A whole step with the gradients that its parameters have, with kernels where there are.
void step(torch::optim::Optimizer& optimizer);

void update(const PreparedUpdate& prepared, Slice slice, const void* gradient, double gradient_scale);

}  // namespace tutti::detail
