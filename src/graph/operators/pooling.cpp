#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

struct Pool {
  std::vector<std::int64_t> kernel, stride, padding, dilation;
  bool is_ceil = false;        // a window that is not whole counts, too
  bool counts_padding = true;  // in a mean
};

// How many windows there are: with `is_ceil` also one that begins within the input or the padding before it.
std::int64_t windows(const Pool& pool, std::size_t i, std::int64_t size) {
  const std::int64_t left = size + 2 * pool.padding[i] - pool.dilation[i] * (pool.kernel[i] - 1) - 1;
  if (left < 0 && !pool.is_ceil) return 0;
  const std::int64_t more = pool.is_ceil ? pool.stride[i] - 1 : 0;
  if (left + more < 0) return 0;
  const std::int64_t count = (left + more) / pool.stride[i] + 1;
  return pool.is_ceil && (count - 1) * pool.stride[i] >= size + pool.padding[i] ? count - 1 : count;
}

Operator resolve_pool(const Options& options, Inputs inputs, std::size_t spatial, bool is_max) {
  expect_image(options, inputs, spatial);
  const Shape& shape = inputs[0].shape;
  Pool pool;
  pool.kernel = options.sizes("kernel", spatial, {.min = 1, .max = kMostSize});
  pool.stride = options.find("stride") ? options.sizes("stride", spatial, {.min = 1, .max = kMostSize}) : pool.kernel;
  pool.padding = options.sizes("padding", spatial, {.min = 0, .max = kMostSize}, 0);
  pool.dilation.assign(spatial, 1);
  if (is_max) pool.dilation = options.sizes("dilation", spatial, {.min = 1, .max = kMostSize}, 1);
  pool.is_ceil = options.boolean("ceil", false);
  if (!is_max) pool.counts_padding = options.boolean("count_padding", true);
  Operator result{.output = {.shape = {shape[0]}}};
  for (std::size_t i = 0; i < spatial; ++i) {
    if (pool.padding[i] > pool.kernel[i] / 2) throw options.at("padding").error("expected at most half of the kernel");
    result.output.shape.push_back(windows(pool, i, shape[i + 1]));
    if (result.output.shape.back() < 1)
      throw options.error(fmt::format("the kernel is larger than an input of the shape {}", to_string(shape)));
  }
  result.compute = [pool, spatial, is_max](const OperatorCall& call) {
    const at::Tensor& x = call.inputs[0];
    if (is_max) {
      return spatial == 1 ? at::max_pool1d(x, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.is_ceil)
                          : at::max_pool2d(x, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.is_ceil);
    }
    return spatial == 1 ? at::avg_pool1d(x, pool.kernel, pool.stride, pool.padding, pool.is_ceil, pool.counts_padding)
                        : at::avg_pool2d(x, pool.kernel, pool.stride, pool.padding, pool.is_ceil, pool.counts_padding);
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
