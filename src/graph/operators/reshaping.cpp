#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

Operator reshaped_to(const ValueSpec& output) {
  return {.output = output, .compute = [shape = output.shape](const OperatorCall& call) {
            return call.inputs[0].reshape(with_rows(call.inputs[0].size(0), shape));
          }};
}

// All dimensions from `from` on become one.
Operator resolve_flatten(const Options& options, Inputs inputs) {
  const Shape& shape = inputs[0].shape;
  const std::optional<JsonValue> from = options.find("from");
  ValueSpec output = inputs[0];
  output.shape.resize(from ? dimension(*from, std::max<std::size_t>(shape.size(), 1)) : 0);
  output.shape.push_back(*element_count(std::span(shape).subspan(output.shape.size())));
  return reshaped_to(output);
}

// One of the sizes may be -1: whatever is left.
Operator resolve_reshape(const Options& options, Inputs inputs) {
  const JsonValue shape = options.at("shape");
  ValueSpec output{.type = inputs[0].type};
  std::optional<std::size_t> open;
  for (const JsonValue& size : shape.elements()) {
    output.shape.push_back(size.integer({.min = -1, .max = kMostSize}));
    if (output.shape.back() != -1) continue;
    if (open) throw size.error("only one size may be -1");
    open = output.shape.size() - 1;
  }
  const std::int64_t all = *element_count(inputs[0].shape);
  if (open) {
    output.shape[*open] = 1;
    const std::optional<std::int64_t> others = element_count(output.shape);
    output.shape[*open] = others && *others > 0 && all % *others == 0 ? all / *others : -1;
  }
  if (element_count(output.shape) != all) {
    throw shape.error(fmt::format("expected a shape for the {} elements of {}, found {}", all,
                                  to_string(inputs[0].shape), to_string(output.shape)));
  }
  return reshaped_to(output);
}

// Dimension i of the output is dimension dims[i] of the input.
Operator resolve_permute(const Options& options, Inputs inputs) {
  const Shape& shape = inputs[0].shape;
  const JsonValue value = options.at("dims");
  if (!value.is_array() || value.size() != shape.size())
    throw value.expected(fmt::format("the {} dimensions of {} in a new order", shape.size(), to_string(shape)));
  std::vector<std::int64_t> dims{0};
  ValueSpec output{.type = inputs[0].type};
  for (const JsonValue& one : value.elements()) {
    const std::size_t dim = dimension(one, shape.size());
    if (std::ranges::find(dims.begin() + 1, dims.end(), static_cast<std::int64_t>(dim) + 1) != dims.end())
      throw one.error(fmt::format("dimension {} is there twice", dim));
    dims.push_back(static_cast<std::int64_t>(dim) + 1);
    output.shape.push_back(shape[dim]);
  }
  return {.output = output, .compute = [dims](const OperatorCall& call) { return call.inputs[0].permute(dims); }};
}

Operator resolve_concat(const Options& options, Inputs inputs) {
  ValueSpec output = inputs[0];
  if (output.shape.empty()) throw options.error("expected inputs with dimensions, found one number");
  const std::optional<JsonValue> value = options.find("dim");
  const std::size_t dim = value ? dimension(*value, output.shape.size()) : 0;
  for (const ValueSpec& input : inputs.subspan(1)) {
    ValueSpec like = input;
    if (like.shape.size() == output.shape.size()) like.shape[dim] = inputs[0].shape[dim];
    if (like != inputs[0]) {
      throw options.error(fmt::format("expected inputs that differ in dimension {} alone, found {} and {}", dim,
                                      to_string(inputs[0]), to_string(input)));
    }
    output.shape[dim] += input.shape[dim];
  }
  return {.output = output, .compute = [dim](const OperatorCall& call) {
            return at::cat(at::TensorList(call.inputs.data(), call.inputs.size()), static_cast<std::int64_t>(dim) + 1);
          }};
}

}  // namespace

void add_reshaping(OperatorRegistry& registry) {
  registry.add({.name = "flatten", .resolve = resolve_flatten});
  registry.add({.name = "reshape", .resolve = resolve_reshape});
  registry.add({.name = "permute", .resolve = resolve_permute});
  registry.add({.name = "concat", .least_inputs = 2, .most_inputs = kAnyNumber, .resolve = resolve_concat});
}

}  // namespace tutti::detail
