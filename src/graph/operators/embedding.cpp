#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "made_once.hpp"
#include "operators.hpp"

namespace tutti::detail {
namespace {

// A vector for each number from 0 to entries-1.
Operator resolve_embedding(const Options& options, Inputs inputs) {
  if (inputs[0].type != ValueType::int64) {
    throw options.error(
        fmt::format("expected numbers of entries, an input of int64, found {} of float32", to_string(inputs[0].shape)));
  }
  const std::int64_t entries = options.integer("entries", {.min = 1, .max = kMostSize});
  const std::int64_t units = options.integer("units", {.min = 1, .max = kMostSize});
  // One that stands for nothing: it gets no gradient.
  std::int64_t padding = -1;
  if (const std::optional<JsonValue> value = options.find("padding"))
    padding = value->integer({.min = 0, .max = entries - 1});
  Operator result{.output = {.shape = inputs[0].shape}};
  result.output.shape.push_back(units);
  result.parameters.push_back({"weight", {entries, units}, initializer::Normal{1}});
  result.compute = [padding](const OperatorCall& call) {
    return at::embedding(call.parameters[0], call.inputs[0], padding);
  };
  return result;
}

// Sines and cosines of growing wave lengths (Vaswani and others: "Attention is all you need", 2017).
at::Tensor waves(std::int64_t positions, std::int64_t units) {
  at::Tensor table = at::empty({positions, units}, at::kDouble);
  double* value = table.data_ptr<double>();
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const double rate = std::pow(10'000.0, -static_cast<double>(unit / 2 * 2) / static_cast<double>(units));
      const double angle = static_cast<double>(position) * rate;
      *value++ = unit % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  }
  return table;
}

// Adds to each position of [positions, units] what says where it is.
Operator resolve_positional(const Options& options, Inputs inputs) {
  expect_dimensions(options, inputs, 2, "positions and units");
  const bool is_learned = options.choice("kind", {"learned", "sinusoidal"}, "learned") == "learned";
  Operator result{.output = inputs[0]};
  if (is_learned) {
    result.parameters.push_back({"weight", inputs[0].shape, initializer::Normal{0.02}});
    result.compute = [](const OperatorCall& call) { return call.inputs[0] + call.parameters[0]; };
  } else {
    // In both types: one of float32 is wanted in every step.
    const MadeOnce table([shape = inputs[0].shape] { return waves(shape[0], shape[1]); });
    const MadeOnce rounded([table] { return table.get().to(at::kFloat); });
    result.compute = [table, rounded](const OperatorCall& call) {
      const at::Tensor& x = call.inputs[0];
      return x + (x.scalar_type() == at::kDouble ? table.get() : rounded.get().to(x.scalar_type()));
    };
  }
  return result;
}

}  // namespace

void add_embeddings(OperatorRegistry& registry) {
  registry.add({.name = "embedding", .resolve = resolve_embedding});
  registry.add({.name = "positional_embedding", .resolve = resolve_positional});
}

}  // namespace tutti::detail
