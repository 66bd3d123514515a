// What torch's optimizers keep for a parameter, by name: for checkpoints.
//
//   std::vector<OptimizerField> kept = optimizer_fields(optimizer, parameter);   // {"exp_avg", ...}, {"step", 12}
//   set_optimizer_fields(optimizer, parameter, kept);
#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <tutti/base/parameter_set.hpp>

namespace tutti::detail {

// A count is a tensor of one whole number.
struct OptimizerField {
  std::string name;
  torch::Tensor tensor;
};

// Those that there are: none before the first step. A UsageError for an optimizer that tutti has no kernels for.
std::vector<OptimizerField> optimizer_fields(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

// The names that such an optimizer may have, whether they are there or not.
std::vector<std::string> optimizer_field_names(const torch::optim::Optimizer& optimizer);

// Takes the place of what is kept. Tensors are copied, and laid out as the parameter.
void set_optimizer_fields(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                          const std::vector<OptimizerField>& fields);

// Under `prefix` + "optimizer/exp_avg/" + name, and back: what is there of a parameter, a UsageError where it does not
// fit.
void add_optimizer(ParameterSet& state, const std::string& prefix, const std::string& name,
                   torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);
std::vector<OptimizerField> optimizer_in(const ParameterSet& state, const std::string& prefix, const std::string& name,
                                         const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

}  // namespace tutti::detail
