#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "made_once.hpp"
#include "operators.hpp"

namespace tutti::detail {
namespace {

using initializer::Constant;
using initializer::Xavier;

struct Attention {
  std::int64_t heads = 1;
  double dropout = 0;
  bool has_bias = true;
  std::optional<MadeOnce> mask;  // true where a position may not look
};

Attention read_attention(const Options& options, std::int64_t units, std::int64_t from, std::int64_t to) {
  Attention attention;
  attention.heads = options.integer("heads", {.min = 1, .max = kMostSize});
  if (units % attention.heads != 0)
    throw options.at("heads").error(fmt::format("expected a divisor of {} units, found {}", units, attention.heads));
  attention.dropout = options.number("dropout", {.min = 0, .max = 1, .max_excluded = true}, 0);
  attention.has_bias = options.boolean("bias", true);
  if (options.boolean("causal", false)) {
    if (from != to) throw options.at("causal").error("expected as many positions to look at as look");
    attention.mask.emplace([from] { return at::ones({from, from}, at::kBool).triu(1); });
  }
  return attention;
}

// As torch.nn.MultiheadAttention has them.
void add_parameters(Operator& result, const std::string& prefix, std::int64_t units, bool has_bias) {
  result.parameters.push_back({prefix + "in_proj_weight", {3 * units, units}, Xavier{}});
  if (has_bias) result.parameters.push_back({prefix + "in_proj_bias", {3 * units}, Constant{0}});
  result.parameters.push_back({prefix + "out_proj.weight", {units, units}, within_root_of(units)});
  if (has_bias) result.parameters.push_back({prefix + "out_proj.bias", {units}, Constant{0}});
}

// No biases where there are none.
struct AttentionParameters {
  at::Tensor in_weight, out_weight;
  c10::optional<at::Tensor> in_bias, out_bias;
};
AttentionParameters parameters_of(const OperatorCall& call, bool has_bias) {
  if (!has_bias) return {call.parameters[0], call.parameters[1], c10::nullopt, c10::nullopt};
  return {call.parameters[0], call.parameters[2], call.parameters[1], call.parameters[3]};
}

// [rows, positions, units] to [rows, heads, positions, units of a head].
at::Tensor by_head(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor attend(const Attention& attention, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionParameters& its, bool is_training) {
  const std::int64_t units = query.size(2);
  const at::Tensor q = by_head(query, attention.heads) * (1 / std::sqrt(static_cast<double>(units / attention.heads)));
  at::Tensor scores = at::matmul(q, by_head(key, attention.heads).transpose(2, 3));
  if (attention.mask) scores = scores.masked_fill(attention.mask->get(), -std::numeric_limits<double>::infinity());
  at::Tensor shares = at::softmax(scores, -1);
  if (attention.dropout > 0) shares = at::dropout(shares, attention.dropout, is_training);
  const at::Tensor seen = at::matmul(shares, by_head(value, attention.heads)).transpose(1, 2);
  return at::linear(seen.reshape({query.size(0), query.size(1), units}), its.out_weight, its.out_bias);
}

at::Tensor attend_to_itself(const Attention& attention, const at::Tensor& x, const AttentionParameters& its,
                            bool is_training) {
  const std::vector<at::Tensor> all = at::linear(x, its.in_weight, its.in_bias).chunk(3, -1);
  return attend(attention, all[0], all[1], all[2], its, is_training);
}

at::Tensor attend_to_others(const Attention& attention, std::span<const at::Tensor> inputs,
                            const AttentionParameters& its, bool is_training) {
  const std::vector<at::Tensor> weights = its.in_weight.chunk(3);
  const auto project = [&, biases = its.in_bias ? its.in_bias->chunk(3) : std::vector<at::Tensor>()](
                           std::size_t which, const at::Tensor& x) {
    return at::linear(x, weights[which], its.in_bias ? c10::optional<at::Tensor>(biases[which]) : c10::nullopt);
  };
  return attend(attention, project(0, inputs[0]), project(1, inputs[1]), project(2, inputs.back()), its, is_training);
}

// Of one input with itself, of a first with a second, or with the keys and values that the second and third are.
Operator resolve_attention(const Options& options, Inputs inputs) {
  expect_float(options, inputs);
  for (const ValueSpec& input : inputs) {
    if (input.shape.size() != 2 || input.shape[1] != inputs[0].shape.back())
      throw options.error(fmt::format("expected inputs of positions and units, and of as many units, found {}",
                                      to_string(input.shape)));
  }
  if (inputs.size() == 3 && inputs[1].shape != inputs[2].shape)
    throw options.error(fmt::format("expected keys and values of one shape, found {} and {}",
                                    to_string(inputs[1].shape), to_string(inputs[2].shape)));
  const std::int64_t units = inputs[0].shape[1];
  const std::int64_t from = inputs[0].shape[0];
  const std::int64_t to = inputs[std::min<std::size_t>(1, inputs.size() - 1)].shape[0];
  const Attention attention = read_attention(options, units, from, to);
  Operator result{.output = inputs[0], .draws = attention.dropout > 0};
  add_parameters(result, "", units, attention.has_bias);
  result.compute = [attention](const OperatorCall& call) {
    const AttentionParameters its = parameters_of(call, attention.has_bias);
    return call.inputs.size() == 1 ? attend_to_itself(attention, call.inputs[0], its, call.is_training)
                                   : attend_to_others(attention, call.inputs, its, call.is_training);
  };
  return result;
}

// As torch.nn.TransformerEncoderLayer: attention and two linear layers, each added to what came in.
Operator resolve_block(const Options& options, Inputs inputs) {
  expect_dimensions(options, inputs, 2, "positions and units");
  const std::int64_t positions = inputs[0].shape[0];
  const std::int64_t units = inputs[0].shape[1];
  const Attention attention = read_attention(options, units, positions, positions);
  if (!attention.has_bias) throw options.at("bias").error("a transformer block has biases");
  const std::int64_t hidden = options.integer("hidden", {.min = 1, .max = kMostSize}, 4 * units);
  const bool is_gelu = options.choice("activation", {"gelu", "relu"}, "gelu") == "gelu";
  const bool is_first = options.choice("norm", {"first", "last"}, "first") == "first";
  const double eps = options.number("eps", {.min = 0, .min_excluded = true}, 1e-5);
  Operator result{.output = inputs[0], .draws = attention.dropout > 0};
  add_parameters(result, "self_attn.", units, true);
  result.parameters.push_back({"linear1.weight", {hidden, units}, within_root_of(units)});
  result.parameters.push_back({"linear1.bias", {hidden}, within_root_of(units)});
  result.parameters.push_back({"linear2.weight", {units, hidden}, within_root_of(hidden)});
  result.parameters.push_back({"linear2.bias", {units}, within_root_of(hidden)});
  for (const char* norm : {"norm1", "norm2"}) {
    result.parameters.push_back({std::string(norm) + ".weight", {units}, Constant{1}});
    result.parameters.push_back({std::string(norm) + ".bias", {units}, Constant{0}});
  }
  result.compute = [attention, is_gelu, is_first, eps](const OperatorCall& call) {
    const auto drop = [&](const at::Tensor& x) {
      return attention.dropout > 0 ? at::dropout(x, attention.dropout, call.is_training) : x;
    };
    const auto norm = [&](const at::Tensor& x, std::size_t which) {
      const at::Tensor& weight = call.parameters[8 + 2 * which];
      return at::layer_norm(x, weight.sizes(), weight, call.parameters[9 + 2 * which], eps, /*cudnn_enable=*/false);
    };
    const auto look = [&](const at::Tensor& x) {
      return drop(attend_to_itself(attention, x, parameters_of(call, true), call.is_training));
    };
    const auto feed = [&](const at::Tensor& x) {
      const at::Tensor wide = at::linear(x, call.parameters[4], call.parameters[5]);
      return drop(at::linear(drop(is_gelu ? at::gelu(wide) : at::relu(wide)), call.parameters[6], call.parameters[7]));
    };
    const at::Tensor& x = call.inputs[0];
    if (is_first) {
      const at::Tensor middle = x + look(norm(x, 0));
      return middle + feed(norm(middle, 1));
    }
    const at::Tensor middle = norm(x + look(x), 0);
    return norm(middle + feed(middle), 1);
  };
  return result;
}

}  // namespace

void add_attention(OperatorRegistry& registry) {
  registry.add({.name = "attention", .most_inputs = 3, .resolve = resolve_attention});
  registry.add({.name = "transformer_block", .resolve = resolve_block});
}

}  // namespace tutti::detail
