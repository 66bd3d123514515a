// What a parameter holds before the first step. In JSON "zeros", "ones", {"constant": 0.1}, {"uniform": [-0.1, 0.1]},
// {"normal": 0.02} (its standard deviation), "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal",
// "orthogonal".
//
//   const std::array<std::uint64_t, 2> stream{seed, place};
//   std::vector<float> weight = initial_values(initializer::Normal{.std = 0.02}, {256, 784}, stream);
//
// Values depend on the list of numbers alone that names their stream (base/random.hpp): not on the other parameters,
// nor on the order in which they are made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/base/shape.hpp>

namespace tutti {
namespace initializer {

struct Constant {
  double value = 0;
  friend bool operator==(const Constant&, const Constant&) = default;
};

struct Uniform {
  double low = -1;
  double high = 1;
  friend bool operator==(const Uniform&, const Uniform&) = default;
};

struct Normal {
  double std = 1;
  friend bool operator==(const Normal&, const Normal&) = default;
};

// Glorot, Bengio: "Understanding the difficulty of training deep feedforward neural networks", 2010.
struct Xavier {
  bool is_normal = false;
  friend bool operator==(const Xavier&, const Xavier&) = default;
};

// He, Zhang, Ren, Sun: "Delving deep into rectifiers", 2015; for ReLU.
struct Kaiming {
  bool is_normal = false;
  friend bool operator==(const Kaiming&, const Kaiming&) = default;
};

// Rows, or columns where there are more rows, that are orthogonal to each other.
struct Orthogonal {
  friend bool operator==(const Orthogonal&, const Orthogonal&) = default;
};

}  // namespace initializer

using Initializer = std::variant<initializer::Constant, initializer::Uniform, initializer::Normal, initializer::Xavier,
                                 initializer::Kaiming, initializer::Orthogonal>;

nlohmann::ordered_json to_json(const Initializer& initializer);
Initializer initializer_from_json(const JsonValue& value);

// Xavier, Kaiming and Orthogonal want at least two dimensions: a UsageError otherwise. The first is taken
// for that of the outputs, the second for that of the inputs, the others for those of a kernel, as PyTorch does.
std::vector<float> initial_values(const Initializer& initializer, const Shape& shape,
                                  std::span<const std::uint64_t> stream);

}  // namespace tutti
