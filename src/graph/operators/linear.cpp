#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {

// Of the last dimension: [..., features] becomes [..., units].
void add_linear(OperatorRegistry& registry) {
  registry.add({.name = "linear", .resolve = [](const Options& options, Inputs inputs) {
                  expect_float(options, inputs);
                  if (inputs[0].shape.empty()) throw options.error("expected an input with features, found one number");
                  const std::int64_t features = inputs[0].shape.back();
                  const std::int64_t units = options.integer("units", {.min = 1, .max = kMostSize});
                  const bool has_bias = options.boolean("bias", true);
                  Operator result{.output = inputs[0]};
                  result.output.shape.back() = units;
                  result.parameters.push_back({"weight", {units, features}, within_root_of(features)});
                  if (has_bias) result.parameters.push_back({"bias", {units}, within_root_of(features)});
                  result.compute = [has_bias](const OperatorCall& call) {
                    return at::linear(call.inputs[0], call.parameters[0],
                                      has_bias ? c10::optional<at::Tensor>(call.parameters[1]) : c10::nullopt);
                  };
                  return result;
                }});
}

}  // namespace tutti::detail
