// The operators that tutti has, a function for each family; and what they share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/graph/operator.hpp>

namespace tutti::detail {

void add_linear(OperatorRegistry& registry);
void add_convolutions(OperatorRegistry& registry);
void add_pooling(OperatorRegistry& registry);
void add_norms(OperatorRegistry& registry);
void add_activations(OperatorRegistry& registry);
void add_dropout(OperatorRegistry& registry);
void add_embeddings(OperatorRegistry& registry);
void add_attention(OperatorRegistry& registry);
void add_recurrent(OperatorRegistry& registry);
void add_reshaping(OperatorRegistry& registry);
void add_arithmetic(OperatorRegistry& registry);
void add_torchscript(OperatorRegistry& registry);

using Inputs = std::span<const ValueSpec>;

// A UsageError unless all inputs are float32.
void expect_float(const Options& options, Inputs inputs);
// The same, and the only input has so many dimensions; `what` says what they are: "channels, height and width".
void expect_dimensions(const Options& options, Inputs inputs, std::size_t count, std::string_view what);
// Channels and length, or channels, height and width.
void expect_image(const Options& options, Inputs inputs, std::size_t spatial);
// A dimension of a shape, counted from its end where negative: 0 to dimensions-1.
std::size_t dimension(const JsonValue& value, std::size_t dimensions);
// As nn.Linear and its like draw it: within 1/sqrt(n) of zero.
Initializer within_root_of(std::int64_t n);

}  // namespace tutti::detail
