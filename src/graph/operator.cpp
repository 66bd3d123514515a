#include <tutti/graph/operator.hpp>

#include <cmath>

#include <fmt/format.h>

#include "operators/operators.hpp"

namespace tutti {

OperatorRegistry::OperatorRegistry() : NamedTypes("operator", {"graph"}) {
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

namespace detail {

void expect_float(const Options& options, Inputs inputs) {
  for (const ValueSpec& input : inputs) {
    if (input.type != ValueType::float32) {
      throw options.error(fmt::format("expected an input of float32, found {}; an embedding makes numbers of tokens",
                                      to_string(input)));
    }
  }
}

void expect_dimensions(const Options& options, Inputs inputs, std::size_t count, std::string_view what) {
  expect_float(options, inputs);
  if (inputs[0].shape.size() != count)
    throw options.error(fmt::format("expected an input of {} ({}), found the shape {}",
                                    count == 1 ? "1 dimension" : fmt::format("{} dimensions", count), what,
                                    to_string(inputs[0].shape)));
}

void expect_image(const Options& options, Inputs inputs, std::size_t spatial) {
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
