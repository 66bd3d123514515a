// An operator that is a torch::nn::Module of the user's: its parameters and buffers are the module's. What comes out is
// found by running it once, on rows of zeros.
//
//   OperatorRegistry operators;
//   operators.add(module_operator(
//       {.name = "swiglu",
//        .make = [](const Options& options, std::span<const ValueSpec> inputs) {
//          return std::make_shared<SwiGlu>(inputs[0].shape.back(), options.integer("hidden", {.min = 1}));
//        },
//        .forward = [](torch::nn::Module& module, std::span<const torch::Tensor> inputs) {
//          return static_cast<SwiGlu&>(module).forward(inputs[0]);
//        }}));
//
// A forward takes rows as the first dimension of its inputs, and gives as many. Parameters that two of its modules
// share are one; those that require no gradients are frozen. The module is made anew for each GraphModule, and what it
// draws from libtorch then follows from the seed and the path of its node; a clone has the values of its original.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include <torch/nn/module.h>
#include <tutti/graph/operator.hpp>

namespace tutti {

struct ModuleOperator {
  std::string name;
  std::size_t least_inputs = 1;
  std::size_t most_inputs = 1;
  std::function<std::shared_ptr<torch::nn::Module>(const Options& options, std::span<const ValueSpec> inputs)> make;
  std::function<torch::Tensor(torch::nn::Module& module, std::span<const torch::Tensor> inputs)> forward;
};

OperatorType module_operator(const ModuleOperator& its);

namespace detail {

// The operator of a node whose parameters are a module's; `forward` is called once.
Operator operator_of_module(
    const Options& options, std::span<const ValueSpec> inputs,
    const std::function<std::shared_ptr<torch::nn::Module>()>& make,
    const std::function<torch::Tensor(torch::nn::Module&, std::span<const torch::Tensor>)>& forward);

}  // namespace detail
}  // namespace tutti
