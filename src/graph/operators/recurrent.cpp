#include <ATen/ATen.h>
#include <fmt/format.h>

#include "operators.hpp"

namespace tutti::detail {
namespace {

// Over the positions of [positions, features]: what comes out at each of them, or at the last.
Operator resolve_recurrent(const Options& options, Inputs inputs, bool is_lstm) {
  expect_dimensions(options, inputs, 2, "positions and features");
  const std::int64_t positions = inputs[0].shape[0];
  const std::int64_t units = options.integer("units", {.min = 1, .max = kMostSize / 8});
  const std::int64_t layers = options.integer("layers", {.min = 1, .max = 1000}, 1);
  const bool has_bias = options.boolean("bias", true);
  const bool goes_back = options.boolean("bidirectional", false);
  const double dropout = options.number("dropout", {.min = 0, .max = 1, .max_excluded = true}, 0);
  const bool is_sequence = options.choice("output", {"sequence", "last"}, "sequence") == "sequence";
  const std::int64_t directions = goes_back ? 2 : 1;
  const std::int64_t gates = is_lstm ? 4 : 3;

  Operator result{.output = {.shape = {directions * units}}, .draws = dropout > 0 && layers > 1};
  if (is_sequence) result.output.shape.insert(result.output.shape.begin(), positions);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::int64_t features = layer == 0 ? inputs[0].shape[1] : directions * units;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const std::string suffix = fmt::format("_l{}{}", layer, direction == 1 ? "_reverse" : "");
      const auto add = [&](const char* name, Shape shape) {
        result.parameters.push_back({name + suffix, std::move(shape), within_root_of(units)});
      };
      add("weight_ih", {gates * units, features});
      add("weight_hh", {gates * units, units});
      if (has_bias) add("bias_ih", {gates * units});
      if (has_bias) add("bias_hh", {gates * units});
    }
  }
  result.compute = [=](const OperatorCall& call) {
    const at::Tensor& x = call.inputs[0];
    const at::Tensor zeros = at::zeros({layers * directions, x.size(0), units}, x.options());
    const at::TensorList parameters(call.parameters.data(), call.parameters.size());
    const at::Tensor outputs =
        is_lstm ? std::get<0>(at::lstm(x, {zeros, zeros}, parameters, has_bias, layers, dropout, call.is_training,
                                       goes_back, /*batch_first=*/true))
                : std::get<0>(at::gru(x, zeros, parameters, has_bias, layers, dropout, call.is_training, goes_back,
                                      /*batch_first=*/true));
    if (is_sequence) return outputs;
    // Each direction's last position: the one that goes back ends at the first.
    if (!goes_back) return outputs.select(1, positions - 1);
    return at::cat({outputs.select(1, positions - 1).narrow(1, 0, units), outputs.select(1, 0).narrow(1, units, units)},
                   1);
  };
  return result;
}

}  // namespace

void add_recurrent(OperatorRegistry& registry) {
  for (const bool is_lstm : {true, false}) {
    registry.add({.name = is_lstm ? "lstm" : "gru", .resolve = [is_lstm](const auto& options, Inputs inputs) {
                    return resolve_recurrent(options, inputs, is_lstm);
                  }});
  }
}

}  // namespace tutti::detail
