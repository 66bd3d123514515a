// Modules by their paths under another: "body.conv1" is "conv1" in "body". Those that are not there are made.
//
//   ModuleTree tree(*this);
//   tree.at("body.conv1").register_parameter("weight", tensor);
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/nn/module.h>

namespace tutti::detail {

// "body.conv1.weight" is "weight" in "body.conv1".
inline std::pair<std::string, std::string> split_path(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::pair<std::string, std::string>("", path)
                                  : std::pair(path.substr(0, dot), path.substr(dot + 1));
}

class ModuleTree {
 public:
  explicit ModuleTree(torch::nn::Module& root) : modules_{{"", &root}} {}

  torch::nn::Module& at(const std::string& path) {
    if (const auto found = modules_.find(path); found != modules_.end()) return *found->second;
    const auto [around, name] = split_path(path);
    torch::nn::Module* module = at(around).register_module(name, std::make_shared<torch::nn::Module>()).get();
    modules_.emplace(path, module);
    return *module;
  }

 private:
  std::unordered_map<std::string, torch::nn::Module*> modules_;  // looking for a child copies all of them
};

}  // namespace tutti::detail
