#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

// Sizes are compared from the last on; one that is 1, or is not there, is taken as often as needed.
Shape broadcast(const Options& options, Inputs inputs) {
  Shape shape = inputs[0].shape;
  for (const ValueSpec& input : inputs.subspan(1)) {
    const Shape before = shape;
    Shape other = input.shape;
    const std::size_t dimensions = std::max(shape.size(), other.size());
    shape.insert(shape.begin(), dimensions - shape.size(), 1);
    other.insert(other.begin(), dimensions - other.size(), 1);
    for (std::size_t i = 0; i < dimensions; ++i) {
      if (shape[i] != other[i] && shape[i] != 1 && other[i] != 1) {
        throw options.error(
            fmt::format("inputs of the shapes {} and {} do not fit", to_string(before), to_string(input.shape)));
      }
      if (shape[i] == 1) shape[i] = other[i];
    }
  }
  return shape;
}

// With as many dimensions as the result: those that are missing come between the rows and the others.
at::Tensor aligned(const at::Tensor& x, std::size_t dimensions) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  if (sizes.size() == dimensions + 1) return x;
  sizes.insert(sizes.begin() + 1, dimensions + 1 - sizes.size(), 1);
  return x.reshape(sizes);
}

// From the first input to the last.
void add_folded(OperatorRegistry& registry, const std::string& name,
                at::Tensor (*f)(const at::Tensor&, const at::Tensor&)) {
  registry.add({.name = name,
                .least_inputs = 2,
                .most_inputs = kAnyNumber,
                .resolve = [f](const Options& options, Inputs inputs) {
                  expect_float(options, inputs);
                  Operator result{.output = {.shape = broadcast(options, inputs)}};
                  result.compute = [f, dimensions = result.output.shape.size()](const OperatorCall& call) {
                    at::Tensor sum = aligned(call.inputs[0], dimensions);
                    for (const at::Tensor& next : call.inputs.subspan(1)) sum = f(sum, aligned(next, dimensions));
                    return sum;
                  };
                  return result;
                }});
}

// Over one dimension of a row, or several, or all.
Operator resolve_mean(const Options& options, Inputs inputs) {
  expect_float(options, inputs);
  const Shape& shape = inputs[0].shape;
  std::vector<bool> is_over(shape.size(), true);
  if (const std::optional<JsonValue> value = options.find("dim")) {
    is_over.assign(shape.size(), false);
    if (value->is_array() && value->size() == 0) throw value->expected("at least one dimension");
    for (const JsonValue& one : value->is_array() ? value->elements() : std::vector<JsonValue>{*value}) {
      const std::size_t dim = dimension(one, shape.size());
      if (is_over[dim]) throw one.error(fmt::format("dimension {} is there twice", dim));
      is_over[dim] = true;
    }
  }
  const bool keeps = options.boolean("keep", false);
  Operator result;
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (is_over[i]) dims.push_back(static_cast<std::int64_t>(i) + 1);
    if (!is_over[i] || keeps) result.output.shape.push_back(is_over[i] ? 1 : shape[i]);
  }
  result.compute = [dims, keeps](const OperatorCall& call) {
    // To torch no dimensions are all of them, the rows too.
    return dims.empty() ? call.inputs[0] : call.inputs[0].mean(dims, keeps);
  };
  return result;
}

}  // namespace

void add_arithmetic(OperatorRegistry& registry) {
  add_folded(registry, "add", [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
  add_folded(registry, "multiply", [](const at::Tensor& a, const at::Tensor& b) { return a * b; });
  registry.add({.name = "mean", .resolve = resolve_mean});
}

}  // namespace tutti::detail
