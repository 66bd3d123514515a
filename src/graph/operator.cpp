#include <tutti/graph/operator.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "operators/operators.hpp"

namespace tutti {

OperatorRegistry::OperatorRegistry() {
  detail::add_linear(*this);
  detail::add_convolutions(*this);
  detail::add_pooling(*this);
  detail::add_norms(*this);
  detail::add_activations(*this);
  detail::add_dropout(*this);
  detail::add_embeddings(*this);
  detail::add_attention(*this);
  detail::add_recurrent(*this);
  detail::add_reshaping(*this);
  detail::add_arithmetic(*this);
  detail::add_torchscript(*this);
}

void OperatorRegistry::add(OperatorType type) {
  const bool is_name = !type.name.empty() && std::ranges::all_of(type.name, [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_';
  });
  if (!is_name)
    throw UsageError(fmt::format("an operator's name is made of letters, digits and _, found '{}'", type.name));
  if (type.name == "graph" || types_.contains(type.name))
    throw UsageError(fmt::format("there is an operator '{}' already", type.name));
  if (!type.resolve) throw UsageError(fmt::format("the operator '{}' has no function", type.name));
  types_.emplace(type.name, std::move(type));
}

const OperatorType* OperatorRegistry::find(std::string_view name) const {
  const auto found = types_.find(name);
  return found == types_.end() ? nullptr : &found->second;
}

std::vector<std::string> OperatorRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, type] : types_) names.push_back(name);
  return names;
}

namespace detail {

void expect_float(const NodeOptions& options, Inputs inputs) {
  for (const ValueSpec& input : inputs) {
    if (input.type != ValueType::float32) {
      throw options.error(fmt::format("expected an input of float32, found {}; an embedding makes numbers of tokens",
                                      to_string(input)));
    }
  }
}

void expect_dimensions(const NodeOptions& options, Inputs inputs, std::size_t count, std::string_view what) {
  expect_float(options, inputs);
  if (inputs[0].shape.size() != count)
    throw options.error(fmt::format("expected an input of {} ({}), found the shape {}",
                                    count == 1 ? "1 dimension" : fmt::format("{} dimensions", count), what,
                                    to_string(inputs[0].shape)));
}

void expect_image(const NodeOptions& options, Inputs inputs, std::size_t spatial) {
  expect_dimensions(options, inputs, spatial + 1, spatial == 1 ? "channels and length" : "channels, height and width");
}

std::size_t dimension(const JsonValue& value, std::size_t dimensions) {
  if (dimensions == 0) throw value.error("one number has no dimensions");
  const auto count = static_cast<std::int64_t>(dimensions);
  const std::int64_t found = value.integer({.min = -count, .max = count - 1});
  return static_cast<std::size_t>(found < 0 ? found + count : found);
}

Initializer within_root_of(std::int64_t n) {
  const double bound = n > 0 ? 1 / std::sqrt(static_cast<double>(n)) : 0;
  return initializer::Uniform{-bound, bound};
}

}  // namespace detail
}  // namespace tutti
