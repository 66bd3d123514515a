#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

struct Window {
  std::vector<std::int64_t> kernel, stride, padding, dilation;
  std::int64_t filters = 0, groups = 1;
  bool has_bias = true;
};

Window read_window(const Options& options, std::size_t spatial, std::int64_t channels) {
  Window window;
  window.filters = options.integer("filters", {.min = 1, .max = kMostSize});
  window.kernel = options.sizes("kernel", spatial, {.min = 1, .max = kMostSize});
  window.stride = options.sizes("stride", spatial, {.min = 1, .max = kMostSize}, 1);
  window.dilation = options.sizes("dilation", spatial, {.min = 1, .max = kMostSize}, 1);
  window.groups = options.integer("groups", {.min = 1, .max = kMostSize}, 1);
  window.has_bias = options.boolean("bias", true);
  if (channels % window.groups != 0 || window.filters % window.groups != 0) {
    throw options.at("groups").error(fmt::format("expected a divisor of {} channels and of {} filters, found {}",
                                                 channels, window.filters, window.groups));
  }
  return window;
}

std::int64_t spread(const Window& window, std::size_t i) { return window.dilation[i] * (window.kernel[i] - 1) + 1; }

void finish(Operator& result, const Window& window, Shape weight) {
  const std::int64_t fan_in = *element_count(std::span(weight).subspan(1));
  result.parameters.push_back({"weight", std::move(weight), within_root_of(fan_in)});
  if (window.has_bias) result.parameters.push_back({"bias", {window.filters}, within_root_of(fan_in)});
}

c10::optional<at::Tensor> bias_of(const OperatorCall& call) {
  return call.parameters.size() > 1 ? c10::optional<at::Tensor>(call.parameters[1]) : c10::nullopt;
}

void refuse_empty(const Options& options, const Shape& shape, const Shape& input) {
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 1; }))
    throw options.error(fmt::format("nothing is left of an input of the shape {}", to_string(input)));
}

// "same" pads with zeros so that the sizes stay, only without strides; "valid" is no padding.
Operator resolve_convolution(const Options& options, Inputs inputs, std::size_t spatial) {
  expect_image(options, inputs, spatial);
  const Shape& shape = inputs[0].shape;
  Window window = read_window(options, spatial, shape[0]);
  const std::optional<JsonValue> padding = options.find("padding");
  const bool is_same = padding && padding->is_string() && padding->one_of({"same", "valid"}) == "same";
  if (is_same) {
    if (std::ranges::any_of(window.stride, [](std::int64_t stride) { return stride != 1; }))
      throw padding->error("\"same\" keeps the sizes, which a stride does not");
  } else if (padding && padding->is_string()) {
    window.padding.assign(spatial, 0);
  } else {
    window.padding = options.sizes("padding", spatial, {.min = 0, .max = kMostSize}, 0);
  }
  Operator result{.output = {.shape = {window.filters}}};
  Shape weight{window.filters, shape[0] / window.groups};
  for (std::size_t i = 0; i < spatial; ++i) {
    const std::int64_t left = is_same ? 0 : shape[i + 1] + 2 * window.padding[i] - spread(window, i);
    result.output.shape.push_back(is_same ? shape[i + 1] : left < 0 ? 0 : left / window.stride[i] + 1);
    weight.push_back(window.kernel[i]);
  }
  refuse_empty(options, result.output.shape, shape);
  if (!element_count(weight)) throw options.error("its kernels fit no machine");
  finish(result, window, std::move(weight));
  result.compute = [window, is_same, spatial](const OperatorCall& call) {
    const at::Tensor& x = call.inputs[0];
    const at::Tensor& w = call.parameters[0];
    if (is_same) {
      return spatial == 1 ? at::conv1d(x, w, bias_of(call), window.stride, "same", window.dilation, window.groups)
                          : at::conv2d(x, w, bias_of(call), window.stride, "same", window.dilation, window.groups);
    }
    return spatial == 1
               ? at::conv1d(x, w, bias_of(call), window.stride, window.padding, window.dilation, window.groups)
               : at::conv2d(x, w, bias_of(call), window.stride, window.padding, window.dilation, window.groups);
  };
  return result;
}

Operator resolve_transposed(const Options& options, Inputs inputs, std::size_t spatial) {
  expect_image(options, inputs, spatial);
  const Shape& shape = inputs[0].shape;
  Window window = read_window(options, spatial, shape[0]);
  window.padding = options.sizes("padding", spatial, {.min = 0, .max = kMostSize}, 0);
  const std::vector<std::int64_t> more = options.sizes("output_padding", spatial, {.min = 0, .max = kMostSize}, 0);
  Operator result{.output = {.shape = {window.filters}}};
  Shape weight{shape[0], window.filters / window.groups};
  for (std::size_t i = 0; i < spatial; ++i) {
    if (more[i] >= std::max(window.stride[i], window.dilation[i]))
      throw options.at("output_padding").error("expected less than the stride or the dilation");
    result.output.shape.push_back((shape[i + 1] - 1) * window.stride[i] - 2 * window.padding[i] + spread(window, i) +
                                  more[i]);
    weight.push_back(window.kernel[i]);
  }
  refuse_empty(options, result.output.shape, shape);
  if (!element_count(weight)) throw options.error("its kernels fit no machine");
  finish(result, window, std::move(weight));
  result.compute = [window, more, spatial](const OperatorCall& call) {
    const auto compute =
        spatial == 1 ? static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&,
                                                  const c10::optional<at::Tensor>&, at::IntArrayRef, at::IntArrayRef,
                                                  at::IntArrayRef, std::int64_t, at::IntArrayRef)>(at::conv_transpose1d)
                     : at::conv_transpose2d;
    return compute(call.inputs[0], call.parameters[0], bias_of(call), window.stride, window.padding, more,
                   window.groups, window.dilation);
  };
  return result;
}

}  // namespace

void add_convolutions(OperatorRegistry& registry) {
  for (const std::size_t spatial : {std::size_t{1}, std::size_t{2}}) {
    registry.add({.name = fmt::format("conv{}d", spatial), .resolve = [spatial](const auto& options, Inputs inputs) {
                    return resolve_convolution(options, inputs, spatial);
                  }});
    registry.add(
        {.name = fmt::format("conv_transpose{}d", spatial), .resolve = [spatial](const auto& options, Inputs inputs) {
           return resolve_transposed(options, inputs, spatial);
         }});
  }
}

}  // namespace tutti::detail
