#include <functional>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

using Activation = std::function<at::Tensor(const at::Tensor&)>;

// Element by element. `read` takes its options and gives the function.
void add(OperatorRegistry& registry, const std::string& name, const std::function<Activation(const Options&)>& read) {
  registry.add({.name = name, .resolve = [read](const Options& options, Inputs inputs) {
                  expect_float(options, inputs);
                  return Operator{.output = inputs[0], .compute = [f = read(options)](const OperatorCall& call) {
                                    return f(call.inputs[0]);
                                  }};
                }});
}

void add(OperatorRegistry& registry, const std::string& name, at::Tensor (*f)(const at::Tensor&)) {
  add(registry, name, [f](const Options&) { return Activation(f); });
}

// A slope for what is negative that is learnt: one, or one for each channel.
Operator resolve_prelu(const Options& options, Inputs inputs) {
  expect_float(options, inputs);
  const bool is_per_channel = options.boolean("per_channel", false);
  if (is_per_channel && inputs[0].shape.empty())
    throw options.error("expected an input with channels, found one number");
  return {.output = inputs[0],
          .parameters = {{"weight", {is_per_channel ? inputs[0].shape[0] : 1}, initializer::Constant{0.25}}},
          .compute = [](const OperatorCall& call) { return at::prelu(call.inputs[0], call.parameters[0]); }};
}

// Over one dimension of a row, the last one unless it is named.
void add_softmax(OperatorRegistry& registry, const std::string& name, bool is_log) {
  registry.add({.name = name, .resolve = [is_log](const Options& options, Inputs inputs) {
                  expect_float(options, inputs);
                  const std::size_t dimensions = inputs[0].shape.size();
                  if (dimensions == 0) throw options.error("expected an input with dimensions, found one number");
                  const std::optional<JsonValue> value = options.find("dim");
                  const auto dim = static_cast<std::int64_t>(value ? dimension(*value, dimensions) : dimensions - 1);
                  return Operator{.output = inputs[0], .compute = [dim, is_log](const OperatorCall& call) {
                                    return is_log ? at::log_softmax(call.inputs[0], dim + 1)
                                                  : at::softmax(call.inputs[0], dim + 1);
                                  }};
                }});
}

}  // namespace

void add_activations(OperatorRegistry& registry) {
  add(registry, "relu", [](const at::Tensor& x) { return at::relu(x); });
  add(registry, "relu6", [](const at::Tensor& x) { return at::hardtanh(x, 0, 6); });
  add(registry, "selu", [](const at::Tensor& x) { return at::selu(x); });
  add(registry, "silu", [](const at::Tensor& x) { return at::silu(x); });
  add(registry, "mish", [](const at::Tensor& x) { return at::mish(x); });
  add(registry, "hardswish", [](const at::Tensor& x) { return at::hardswish(x); });
  add(registry, "sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); });
  add(registry, "tanh", [](const at::Tensor& x) { return at::tanh(x); });
  add(registry, "log_sigmoid", [](const at::Tensor& x) { return at::log_sigmoid(x); });
  add(registry, "softsign", [](const at::Tensor& x) { return x / (x.abs() + 1); });
  add(registry, "hardtanh", [](const Options& options) -> Activation {
    const double min = options.number("min", {}, -1);
    const double max = options.number("max", {.min = min, .min_excluded = true}, 1);
    if (min >= max) throw options.error(fmt::format("expected a min below max, found {} and {}", min, max));
    return [min, max](const at::Tensor& x) { return at::hardtanh(x, min, max); };
  });
  registry.add({.name = "prelu", .resolve = resolve_prelu});
  add(registry, "leaky_relu", [](const Options& options) -> Activation {
    const double slope = options.number("slope", {}, 0.01);
    return [slope](const at::Tensor& x) { return at::leaky_relu(x, slope); };
  });
  add(registry, "elu", [](const Options& options) -> Activation {
    const double alpha = options.number("alpha", {}, 1);
    return [alpha](const at::Tensor& x) { return at::elu(x, alpha); };
  });
  add(registry, "softplus", [](const Options& options) -> Activation {
    const double beta = options.number("beta", {.min = 0, .min_excluded = true}, 1);
    return [beta](const at::Tensor& x) { return at::softplus(x, beta); };
  });
  add(registry, "gelu", [](const Options& options) -> Activation {
    const std::string approximate = options.choice("approximate", {"none", "tanh"}, "none");
    return [approximate](const at::Tensor& x) { return at::gelu(x, approximate); };
  });
  add_softmax(registry, "softmax", false);
  add_softmax(registry, "log_softmax", true);
}

}  // namespace tutti::detail
