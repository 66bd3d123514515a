#include "replicas.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/nn/random_draws.hpp>

#include "kernel_optimizer.hpp"

namespace tutti::detail {
namespace {

std::shared_ptr<torch::nn::Module> replica_from(const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  // Clones are initialised before they are filled: what that draws is not taken from the caller's generator.
  const RandomDraws draws({});
  std::shared_ptr<torch::nn::Module> replica;
  try {
    replica = make();
  } catch (const c10::Error& error) {
    throw UsageError(
        fmt::format("the module cannot be cloned ({}); derive it from torch::nn::Cloneable, or give a factory",
                    error.what_without_backtrace()));
  }
  if (!replica) throw UsageError("the factory made no module");
  return replica;
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module,
                   const std::function<std::shared_ptr<torch::nn::Module>()>& make, int count,
                   const std::function<bool(const std::string&)>& is_private)
    : module_(std::move(module)) {
  if (!module_) throw UsageError("there is no module to train");
  parameters_ = parameters_of(*module_);
  if (parameters_.empty()) throw UsageError("the module has no parameters");
  for (const ModuleParameter& parameter : parameters_) {
    tensors_.push_back(parameter.tensor());
    types_.push_back(data_type_of_parameter(parameter.name(), parameter.tensor()));
    is_private_.push_back(is_private && is_private(parameter.name()));
    for (const std::string& name : parameter.names) {
      if (is_private && is_private(name) != is_private_.back())
        throw UsageError(fmt::format("the parameters '{}' and '{}' are the same, and only one of them is private",
                                     parameter.name(), name));
    }
    layouts_.push_back({parameter.tensor().sizes().vec(), parameter.tensor().strides().vec()});
  }
  submodules_ = module_->modules();
  const bool is_tied =
      std::ranges::any_of(parameters_, [](const ModuleParameter& one) { return one.names.size() > 1; });
  for (int i = 0; i < count; ++i) {
    Replica& replica = replicas_.emplace_back();
    replica.module = i == 0 && !is_tied ? module_ : replica_from(make);
    replica.submodules = replica.module->modules();
  }
  share_memory();
  refuse_unless_apart();
}

void Replicas::share_memory() {
  const std::vector<bool> none(parameters_.size(), false);
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    replica.parameters = replica.module == module_
                             ? parameters_
                             : share_parameters(parameters_, *replica.module, r == 0 ? none : is_private_);
  }
}

// Gradients of two replicas must not meet in one variable, nor may one have parts that another lacks.
void Replicas::refuse_unless_apart() const {
  std::vector<const void*> seen;
  for (const Replica& replica : replicas_) {
    if (replica.submodules.size() != submodules_.size()) {
      throw UsageError(fmt::format("the module has {} modules in it, and a replica {}", submodules_.size() - 1,
                                   replica.submodules.size() - 1));
    }
    std::vector<const void*> its;
    for (const ModuleParameter& parameter : replica.parameters) {
      for (const torch::Tensor& variable : parameter.variables) {
        if (std::ranges::find(seen, variable.unsafeGetTensorImpl()) != seen.end()) {
          throw UsageError(
              fmt::format("two replicas have the same '{}'; a clone, and what a factory makes, must have "
                          "parameters of its own",
                          parameter.name()));
        }
        its.push_back(variable.unsafeGetTensorImpl());
      }
    }
    seen.insert(seen.end(), its.begin(), its.end());
  }
}

void Replicas::follow_the_module() {
  bool moved = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name();
    if (data_type_of_parameter(name, tensors_[i]) != types_[i])
      throw UsageError(fmt::format("the parameter '{}' has changed its type since training began", name));
    if (tensors_[i].sizes() != layouts_[i].sizes || tensors_[i].strides() != layouts_[i].strides)
      throw UsageError(fmt::format("the parameter '{}' has changed its shape since training began", name));
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      for (torch::Tensor variable : replicas_[r].parameters[i].variables) {
        if (!is_own(r, i) && variable.data_ptr() != tensors_[i].data_ptr()) moved = true;
        if (variable.requires_grad() != tensors_[i].requires_grad())
          variable.set_requires_grad(tensors_[i].requires_grad());
      }
    }
  }
  if (moved) share_memory();
  for (const Replica& replica : replicas_) {
    for (std::size_t i = 0; i < submodules_.size(); ++i) {
      if (replica.submodules[i]->is_training() != submodules_[i]->is_training())
        replica.submodules[i]->train(submodules_[i]->is_training());
    }
  }
}

std::size_t Replicas::bytes() const {
  std::size_t sum = 0;
  for (const torch::Tensor& tensor : tensors_) sum += tensor.nbytes();
  return sum;
}

}  // namespace tutti::detail
