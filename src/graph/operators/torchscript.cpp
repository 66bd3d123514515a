#include <filesystem>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <tutti/graph/module_operator.hpp>

#include "operators.hpp"

namespace tutti::detail {
namespace {

// What PyTorch exported, with its parameters and buffers under their names.
class ScriptModule : public torch::nn::Module {
 public:
  explicit ScriptModule(const std::string& file) : script_(load(file)) {
    for (const auto& item : script_.named_parameters(/*recurse=*/true)) {
      place(item.name, [&](torch::nn::Module& module, const std::string& name) {
        module.register_parameter(name, item.value, item.value.requires_grad());
      });
    }
    for (const auto& item : script_.named_buffers(/*recurse=*/true)) {
      place(item.name,
            [&](torch::nn::Module& module, const std::string& name) { module.register_buffer(name, item.value); });
    }
  }

  void train(bool on = true) override {
    torch::nn::Module::train(on);
    script_.train(on);
  }

  torch::Tensor forward(std::span<const torch::Tensor> inputs) {
    std::vector<torch::jit::IValue> values(inputs.begin(), inputs.end());
    const torch::jit::IValue result = script_.forward(std::move(values));
    if (!result.isTensor()) throw Error(fmt::format("expected one tensor to come out, found {}", result.tagKind()));
    return result.toTensor();
  }

 private:
  static torch::jit::Module load(const std::string& file) {
    // Its profiling changes what is fused, and with it bits, between the first calls and later ones.
    torch::jit::getProfilingMode() = false;
    torch::jit::getExecutorMode() = false;
    return torch::jit::load(file);
  }

  // "body.0.weight" is the parameter "weight" of the module "0" of the module "body".
  template <typename Register>
  void place(const std::string& path, const Register& add) {
    torch::nn::Module* module = this;
    std::size_t begin = 0;
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
      const std::string name = path.substr(begin, dot - begin);
      const auto children = module->named_children();
      module = children.contains(name) ? children[name].get()
                                       : module->register_module(name, std::make_shared<torch::nn::Module>()).get();
      begin = dot + 1;
    }
    add(*module, path.substr(begin));
  }

  torch::jit::Module script_;
};

}  // namespace

void add_torchscript(OperatorRegistry& registry) {
  registry.add({.name = "torchscript",
                .least_inputs = 1,
                .most_inputs = kAnyNumber,
                .resolve = [](const Options& options, Inputs inputs) {
                  const JsonValue value = options.at("file");
                  const std::string file = value.string();
                  std::error_code problem;
                  if (!std::filesystem::is_regular_file(file, problem))
                    throw value.expected("a file that torch.jit.save wrote");
                  try {
                    ScriptModule probe(file);
                  } catch (const std::exception& error) {
                    const std::string why = error.what();
                    throw value.error(fmt::format("'{}' is no TorchScript: {}", file, why.substr(0, why.find('\n'))));
                  }
                  return operator_of_module(
                      options, inputs, [file] { return std::make_shared<ScriptModule>(file); },
                      [](torch::nn::Module& module, std::span<const torch::Tensor> tensors) {
                        return static_cast<ScriptModule&>(module).forward(tensors);
                      });
                }});
}

}  // namespace tutti::detail
