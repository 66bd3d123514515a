// The replicas of a module: each thread's own, all over the same parameters.
//
//   Replicas replicas(module, [&] { return module->clone(); }, 4);
//   replicas.follow_the_module();                    // before each step
//   loss = replicas[worker].module->...
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <tutti/base/data_type.hpp>

#include "module_parameters.hpp"

namespace tutti::detail {

struct Replica {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<ModuleParameter> parameters;
  std::vector<std::shared_ptr<torch::nn::Module>> submodules;
};

class Replicas {
 public:
  // The first is the module itself, unless it has tied weights: a clone has them apart, each with a gradient of its
  // own, and all replicas have to add these up alike. A UsageError where there is no module, it has no parameters or
  // one that cannot be trained, or what `make` returns is no replica of it.
  //
  // Parameters whose name is private are each replica's own; the module's are the first one's.
  Replicas(std::shared_ptr<torch::nn::Module> module, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
           int count, const std::function<bool(const std::string&)>& is_private);

  // Whoever trains the module may have frozen parameters, put parts of it into evaluation, or moved it elsewhere. A
  // UsageError names a parameter whose type or shape is another now.
  void follow_the_module();

  std::size_t size() const { return replicas_.size(); }
  Replica& operator[](std::size_t worker) { return replicas_[worker]; }
  auto begin() const { return replicas_.begin(); }
  auto end() const { return replicas_.end(); }

  torch::nn::Module& module() const { return *module_; }
  // The module's own, and of each what is often asked for.
  const std::vector<ModuleParameter>& parameters() const { return parameters_; }
  const std::vector<torch::Tensor>& tensors() const { return tensors_; }
  const std::vector<DataType>& types() const { return types_; }
  bool is_private(std::size_t parameter) const { return is_private_[parameter]; }
  bool has_private() const { return std::ranges::find(is_private_, true) != is_private_.end(); }
  std::size_t bytes() const;  // of all parameters, once

 private:
  struct Layout {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  void share_memory();
  bool is_own(std::size_t replica, std::size_t parameter) const { return replica > 0 && is_private_[parameter]; }
  void refuse_unless_apart() const;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<ModuleParameter> parameters_;
  std::vector<torch::Tensor> tensors_;
  std::vector<DataType> types_;
  std::vector<bool> is_private_;
  std::vector<Layout> layouts_;
  std::vector<std::shared_ptr<torch::nn::Module>> submodules_;
  std::vector<Replica> replicas_;
};

}  // namespace tutti::detail
