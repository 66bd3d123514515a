#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <tutti/graph/module_operator.hpp>

#include "../cause.hpp"
#include "../module_tree.hpp"
#include "operators.hpp"

namespace tutti::detail {
namespace {

// What PyTorch exported, with its parameters and buffers under their names. Those that share memory are one, under the
// first of them.
class ScriptModule : public torch::nn::Module {
 public:
  explicit ScriptModule(const std::string& file) : script_(load(file)) {
    std::vector<torch::Tensor> known;
    ModuleTree tree(*this);
    for (const auto& [path, module] : script_.named_modules()) {
      for (const auto& [name, value] : module.named_parameters(/*recurse=*/false)) {
        const auto same = std::ranges::find_if(known, [&, &tensor = value](const torch::Tensor& other) {
          return other.data_ptr() == tensor.data_ptr() && other.sizes() == tensor.sizes() &&
                 other.strides() == tensor.strides();
        });
        if (same != known.end() && value.numel() > 0) {
          torch::jit::Module(module).setattr(name, *same);
          continue;
        }
        known.push_back(tree.at(path).register_parameter(name, value, value.requires_grad()));
      }
      for (const auto& [name, value] : module.named_buffers(/*recurse=*/false)) {
        buffers_.push_back({module, name, tree.at(path).register_buffer(name, value)});
      }
    }
    script_.train(is_training());  // whatever it was when it was saved
  }

  void train(bool on = true) override {
    torch::nn::Module::train(on);
    script_.train(on);
  }

  torch::Tensor forward(std::span<const torch::Tensor> inputs) {
    std::vector<torch::jit::IValue> values(inputs.begin(), inputs.end());
    const torch::jit::IValue result = script_.forward(std::move(values));
    if (!result.isTensor()) throw Error(fmt::format("expected one tensor to come out, found {}", result.tagKind()));
    keep_buffers();
    return result.toTensor();
  }

 private:
  struct Buffer {
    torch::jit::Module module;
    std::string name;
    torch::Tensor tensor;
  };

  static torch::jit::Module load(const std::string& file) {
    // Its profiling changes what is fused, and with it bits, between the first calls and later ones. (The older
    // executor would differentiate by itself, and leave buffers that require gradients.)
    torch::jit::getProfilingMode() = false;
    std::istringstream stream(file);
    return torch::jit::load(stream);
  }

  // A script may put a new tensor in the place of a buffer: its values count, in the tensor that is registered here.
  void keep_buffers() {
    const torch::NoGradGuard no_gradients;
    for (Buffer& buffer : buffers_) {
      const torch::Tensor now = buffer.module.attr(buffer.name).toTensor();
      if (now.is_same(buffer.tensor)) continue;
      buffer.tensor.copy_(now);
      buffer.module.setattr(buffer.name, buffer.tensor);
    }
  }

  torch::jit::Module script_;
  std::vector<Buffer> buffers_;
};

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) throw Error("it cannot be read");
  return std::move(text).str();
}

}  // namespace

void add_torchscript(OperatorRegistry& registry) {
  registry.add({.name = "torchscript",
                .least_inputs = 1,
                .most_inputs = kAnyNumber,
                .resolve = [](const Options& options, Inputs inputs) {
                  const JsonValue value = options.at("file");
                  const std::filesystem::path file = value.existing_file();
                  std::error_code problem;
                  if (!std::filesystem::is_regular_file(file, problem))
                    throw value.expected("a file that torch.jit.save wrote");
                  // Replicas that are made later are made of the same bytes.
                  auto bytes = std::make_shared<std::string>();
                  try {
                    *bytes = contents_of(file);
                    ScriptModule probe(*bytes);
                  } catch (const std::exception& error) {
                    throw value.error(fmt::format("'{}' is no TorchScript: {}", file.string(), cause_of(error)));
                  }
                  return operator_of_module(
                      options, inputs, [bytes] { return std::make_shared<ScriptModule>(*bytes); },
                      [](torch::nn::Module& module, std::span<const torch::Tensor> tensors) {
                        return static_cast<ScriptModule&>(module).forward(tensors);
                      });
                }});
}

}  // namespace tutti::detail
