// An operator: from the shapes of its inputs and its options it says what comes out and which parameters it has,
// without computing anything; and how it computes. Those that tutti has are in docs/graph.md; users add their own.
//
//   OperatorRegistry operators;                                    // those that tutti has
//   operators.add({.name = "scale", .resolve = [](const Options&, std::span<const ValueSpec> inputs) {
//     return Operator{.output = inputs[0],
//                     .parameters = {{.name = "factor", .shape = {1}, .initial = initializer::Constant{1}}},
//                     .compute = [](const OperatorCall& call) { return call.inputs[0] * call.parameters[0]; }};
//   }});
//
// One that is a torch::nn::Module, and whose shapes only its forward knows: graph/module_operator.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/base/named_types.hpp>
#include <tutti/base/options.hpp>
#include <tutti/base/shape.hpp>
#include <tutti/graph/initializer.hpp>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace tutti {

struct ParameterSpec {
  std::string name;  // as PyTorch's modules have it: "weight", "out_proj.weight"
  Shape shape;
  std::optional<Initializer> initial = {};  // of a module's it is what the module holds
  bool is_frozen = false;                   // unless the node says otherwise
};

// What an operator keeps from step to step without training it.
struct BufferSpec {
  std::string name;
  Shape shape;
  double value = 0;
  ValueType type = ValueType::float32;
};

// Tensors have the rows of the batch as their first dimension.
struct OperatorCall {
  std::span<const at::Tensor> inputs;
  std::span<const at::Tensor> parameters;  // in the order of the operator's
  std::span<const at::Tensor> buffers;
  bool is_training = false;
  torch::nn::Module* module = nullptr;  // where the operator has one
};

// An operator with the options and inputs of one node.
struct Operator {
  ValueSpec output = {};
  std::vector<ParameterSpec> parameters = {};
  std::vector<BufferSpec> buffers = {};
  std::function<at::Tensor(const OperatorCall&)> compute = {};  // may be called on several threads at a time
  bool draws = false;                                           // random numbers, in training
  // Where parameters and buffers are a module's: a new one for each replica.
  std::function<std::shared_ptr<torch::nn::Module>()> make_module = {};
};

struct OperatorType {
  std::string name;
  std::size_t least_inputs = 1;
  std::size_t most_inputs = 1;
  // Refuses, at the place of the node, options and inputs that cannot be.
  std::function<Operator(const Options& options, std::span<const ValueSpec> inputs)> resolve;
};

inline constexpr std::size_t kAnyNumber = std::numeric_limits<std::size_t>::max();

class OperatorRegistry : public NamedTypes<OperatorType> {
 public:
  // With the operators that tutti has.
  OperatorRegistry();
};

}  // namespace tutti
