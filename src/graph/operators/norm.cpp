#include <ATen/ATen.h>
#include <fmt/format.h>
#include <tutti/nn/sync_batch_norm.hpp>

#include "operators.hpp"

namespace tutti::detail {
namespace {

using initializer::Constant;

constexpr double kEps = 1e-5;

double read_eps(const Options& options) { return options.number("eps", {.min = 0, .min_excluded = true}, kEps); }

void add_affine(Operator& result, const Shape& shape) {
  result.parameters.push_back({"weight", shape, Constant{1}});
  result.parameters.push_back({"bias", shape, Constant{0}});
}

at::Tensor parameter(const OperatorCall& call, std::size_t index) {
  return index < call.parameters.size() ? call.parameters[index] : at::Tensor();
}

// Over the rows and all dimensions but the first.
Operator resolve_batch_norm(const Options& options, Inputs inputs) {
  expect_float(options, inputs);
  if (inputs[0].shape.empty()) throw options.error("expected an input with channels, found one number");
  const std::int64_t channels = inputs[0].shape[0];
  const double eps = read_eps(options);
  const double momentum = options.number("momentum", {.min = 0, .max = 1}, 0.1);
  Operator result{.output = inputs[0]};
  if (options.boolean("affine", true)) add_affine(result, {channels});
  result.buffers = {{.name = "running_mean", .shape = {channels}},
                    {.name = "running_var", .shape = {channels}, .value = 1},
                    {.name = "num_batches_tracked", .shape = {}, .type = ValueType::int64}};
  result.compute = [eps, momentum](const OperatorCall& call) {
    const at::Tensor& x = call.inputs[0];
    if (call.is_training) {
      // Its variance would be no number.
      if (x.numel() == x.size(1) && !SyncBatchNorm::is_active())
        throw UsageError(
            "batch norm in training needs more than one value for each channel: more rows, or larger ones");
      call.buffers[2].add_(1);
    }
    return at::batch_norm(x, parameter(call, 0), parameter(call, 1), call.buffers[0], call.buffers[1], call.is_training,
                          momentum, eps, /*cudnn_enabled=*/false);
  };
  return result;
}

// Of each row by itself, over its last dimensions.
Operator resolve_layer_norm(const Options& options, Inputs inputs) {
  expect_float(options, inputs);
  const Shape& shape = inputs[0].shape;
  if (shape.empty()) throw options.error("expected an input with features, found one number");
  const std::int64_t count =
      options.integer("dimensions", {.min = 1, .max = static_cast<std::int64_t>(shape.size())}, 1);
  const double eps = read_eps(options);
  const Shape over(shape.end() - count, shape.end());
  Operator result{.output = inputs[0]};
  if (options.boolean("affine", true)) add_affine(result, over);
  result.compute = [over, eps](const OperatorCall& call) {
    return at::layer_norm(call.inputs[0], over, parameter(call, 0), parameter(call, 1), eps, /*cudnn_enable=*/false);
  };
  return result;
}

// Of each row by itself, over channels in groups.
Operator resolve_group_norm(const Options& options, Inputs inputs) {
  expect_float(options, inputs);
  if (inputs[0].shape.empty()) throw options.error("expected an input with channels, found one number");
  const std::int64_t channels = inputs[0].shape[0];
  const std::int64_t groups = options.integer("groups", {.min = 1, .max = kMostSize});
  if (channels % groups != 0)
    throw options.at("groups").error(fmt::format("expected a divisor of {} channels, found {}", channels, groups));
  const double eps = read_eps(options);
  Operator result{.output = inputs[0]};
  if (options.boolean("affine", true)) add_affine(result, {channels});
  result.compute = [groups, eps](const OperatorCall& call) {
    return at::group_norm(call.inputs[0], groups, parameter(call, 0), parameter(call, 1), eps,
                          /*cudnn_enabled=*/false);
  };
  return result;
}

}  // namespace

void add_norms(OperatorRegistry& registry) {
  registry.add({.name = "batch_norm", .resolve = resolve_batch_norm});
  registry.add({.name = "layer_norm", .resolve = resolve_layer_norm});
  registry.add({.name = "group_norm", .resolve = resolve_group_norm});
}

}  // namespace tutti::detail
