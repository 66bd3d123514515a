// The parameters of a module, each once, however many names it has.
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace tutti::detail {

struct ModuleParameter {
  std::vector<std::string> names;        // more than one where weights are tied
  std::vector<torch::Tensor> variables;  // what gradients are accumulated in: one, or several over the same memory

  const std::string& name() const { return names.front(); }
  const torch::Tensor& tensor() const { return variables.front(); }
};

// In the order of their first names. Parameters are one where they are the same memory. A UsageError names two that
// overlap otherwise, one without memory, one with holes in its memory, one on a device.
std::vector<ModuleParameter> parameters_of(const torch::nn::Module& module);

// A UsageError names a parameter that is several tensors over the same memory: each would have a gradient of its own.
void refuse_aliases(const ModuleParameter& parameter);

// Makes the parameters of `replica` those of `of`: the same memory, the same requires_grad; those that `is_own` says
// keep their memory, by the order of `of`. A UsageError names the first that one of them lacks, or whose shape or type
// differs.
std::vector<ModuleParameter> share_parameters(const std::vector<ModuleParameter>& of, const torch::nn::Module& replica,
                                              const std::vector<bool>& is_own);

}  // namespace tutti::detail
