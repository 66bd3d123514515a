#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

Operator resolve_pool(const Options& options, Inputs inputs, std::size_t spatial, bool is_max) {
  expect_image(options, inputs, spatial);
  const Shape& shape = inputs[0].shape;
  const std::vector<std::int64_t> kernel = options.sizes("kernel", spatial, {.min = 1, .max = kMostSize});
  std::vector<std::int64_t> stride = kernel;
  if (options.find("stride")) stride = options.sizes("stride", spatial, {.min = 1, .max = kMostSize});
  const std::vector<std::int64_t> padding = options.sizes("padding", spatial, {.min = 0, .max = kMostSize}, 0);
  Operator result{.output = {.shape = {shape[0]}}};
  for (std::size_t i = 0; i < spatial; ++i) {
    if (padding[i] > kernel[i] / 2) throw options.at("padding").error("expected at most half of the kernel");
    const std::int64_t left = shape[i + 1] + 2 * padding[i] - kernel[i];
    if (left < 0)
      throw options.error(fmt::format("the kernel is larger than an input of the shape {}", to_string(shape)));
    result.output.shape.push_back(left / stride[i] + 1);
  }
  result.compute = [kernel, stride, padding, spatial, is_max](const OperatorCall& call) {
    const at::Tensor& x = call.inputs[0];
    if (is_max)
      return spatial == 1 ? at::max_pool1d(x, kernel, stride, padding) : at::max_pool2d(x, kernel, stride, padding);
    return spatial == 1 ? at::avg_pool1d(x, kernel, stride, padding) : at::avg_pool2d(x, kernel, stride, padding);
  };
  return result;
}

// Pools so that this size comes out, whatever goes in.
Operator resolve_adaptive(const Options& options, Inputs inputs, std::size_t spatial, bool is_max) {
  expect_image(options, inputs, spatial);
  const std::vector<std::int64_t> size = options.sizes("size", spatial, {.min = 1, .max = kMostSize});
  Operator result{.output = {.shape = {inputs[0].shape[0]}}};
  result.output.shape.insert(result.output.shape.end(), size.begin(), size.end());
  result.compute = [size, spatial, is_max](const OperatorCall& call) {
    const at::Tensor& x = call.inputs[0];
    if (!is_max) return spatial == 1 ? at::adaptive_avg_pool1d(x, size) : at::adaptive_avg_pool2d(x, size);
    return std::get<0>(spatial == 1 ? at::adaptive_max_pool1d(x, size) : at::adaptive_max_pool2d(x, size));
  };
  return result;
}

}  // namespace

void add_pooling(OperatorRegistry& registry) {
  for (const std::size_t spatial : {std::size_t{1}, std::size_t{2}}) {
    for (const bool is_max : {true, false}) {
      const char* kind = is_max ? "max" : "avg";
      registry.add({.name = fmt::format("{}_pool{}d", kind, spatial),
                    .resolve = [spatial, is_max](const auto& options, Inputs inputs) {
                      return resolve_pool(options, inputs, spatial, is_max);
                    }});
      registry.add({.name = fmt::format("adaptive_{}_pool{}d", kind, spatial),
                    .resolve = [spatial, is_max](const auto& options, Inputs inputs) {
                      return resolve_adaptive(options, inputs, spatial, is_max);
                    }});
    }
  }
}

}  // namespace tutti::detail
