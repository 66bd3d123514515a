#include <tutti/graph/initializer.hpp>

#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using namespace initializer;

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

const std::vector<std::string> kNames{"zeros",           "ones",           "xavier_uniform", "xavier_normal",
                                      "kaiming_uniform", "kaiming_normal", "orthogonal"};

Initializer named(const std::string& name) {
  if (name == "zeros") return Constant{0};
  if (name == "ones") return Constant{1};
  if (name == "orthogonal") return Orthogonal{};
  const bool is_normal = name.ends_with("normal");
  if (name.starts_with("xavier")) return Xavier{is_normal};
  return Kaiming{is_normal};
}

struct Fans {
  double in = 0;
  double out = 0;
};

Fans fans_of(const Shape& shape) {
  if (shape.size() < 2) throw UsageError(fmt::format("an initializer for weights: {} is none", to_string(shape)));
  const double kernel = static_cast<double>(
      std::accumulate(shape.begin() + 2, shape.end(), std::int64_t{1}, std::multiplies<std::int64_t>()));
  return {.in = static_cast<double>(shape[1]) * kernel, .out = static_cast<double>(shape[0]) * kernel};
}

void fill_uniform(std::vector<float>& values, double low, double high, RandomStream& draws) {
  for (float& value : values) value = static_cast<float>(low + (high - low) * draws.uniform());
}
void fill_normal(std::vector<float>& values, double std, RandomStream& draws) {
  for (float& value : values) value = static_cast<float>(std * draws.normal());
}
// Of this standard deviation, either way.
void fill(std::vector<float>& values, bool is_normal, double std, RandomStream& draws) {
  if (is_normal) return fill_normal(values, std, draws);
  const double bound = std::sqrt(3.0) * std;
  fill_uniform(values, -bound, bound, draws);
}

// In lanes, so that the compiler may add several at a time: their order is the same on every machine.
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const std::size_t whole = a.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t i = whole; i < a.size(); ++i) sums[0] += a[i] * b[i];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Gram and Schmidt, of the rows or of the columns, whichever are fewer.
void fill_orthogonal(std::vector<float>& values, std::size_t rows, RandomStream& draws) {
  const std::size_t columns = values.size() / rows;
  const std::size_t count = std::min(rows, columns);
  const std::size_t length = std::max(rows, columns);
  std::vector<std::vector<double>> vectors(count, std::vector<double>(length));
  for (std::size_t i = 0; i < count; ++i) {
    for (double norm = 0; norm < 1e-6;) {  // a draw that lies in the span of those before is drawn again
      for (double& x : vectors[i]) x = draws.normal();
      for (std::size_t j = 0; j < i; ++j) {
        const double along = dot(vectors[i], vectors[j]);
        for (std::size_t k = 0; k < length; ++k) vectors[i][k] -= along * vectors[j][k];
      }
      norm = std::sqrt(dot(vectors[i], vectors[i]));
      for (double& x : vectors[i]) x /= norm;
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column)
      values[row * columns + column] =
          static_cast<float>(rows <= columns ? vectors[row][column] : vectors[column][row]);
  }
}

}  // namespace

nlohmann::ordered_json to_json(const Initializer& initializer) {
  using Json = nlohmann::ordered_json;
  return std::visit(
      Overloaded{[](const Constant& its) -> Json {
                   if (its.value == 0) return "zeros";
                   if (its.value == 1) return "ones";
                   return Json::object({{"constant", its.value}});
                 },
                 [](const Uniform& its) -> Json {
                   return Json::object({{"uniform", Json::array({its.low, its.high})}});
                 },
                 [](const Normal& its) -> Json {
                   return Json::object({{"normal", its.std}});
                 },
                 [](const Xavier& its) -> Json { return its.is_normal ? "xavier_normal" : "xavier_uniform"; },
                 [](const Kaiming& its) -> Json { return its.is_normal ? "kaiming_normal" : "kaiming_uniform"; },
                 [](const Orthogonal&) -> Json { return "orthogonal"; }},
      initializer);
}

Initializer initializer_from_json(const JsonValue& value) {
  if (value.is_string()) return named(value.one_of(kNames));
  if (!value.is_object() || value.keys().empty()) {
    throw value.expected(fmt::format("{}, {{\"constant\": 0.1}}, {{\"uniform\": [-0.1, 0.1]}} or {{\"normal\": 0.02}}",
                                     fmt::join(kNames, ", ")));
  }
  const std::string key = value.keys().front();
  value.refuse_other_keys(key == "uniform"    ? std::vector<std::string>{"uniform"}
                          : key == "normal"   ? std::vector<std::string>{"normal"}
                          : key == "constant" ? std::vector<std::string>{"constant"}
                                              : std::vector<std::string>{"constant", "uniform", "normal"});
  const JsonValue number = value.at(key);
  if (key == "constant") return Constant{number.number()};
  if (key == "normal") return Normal{number.number({.min = 0})};
  if (!number.is_array() || number.size() != 2)
    throw number.expected("the lower and the upper bound, as in [-0.1, 0.1]");
  const double low = number.element(0).number();
  return Uniform{low, number.element(1).number({.min = low})};
}

std::vector<float> initial_values(const Initializer& initializer, const Shape& shape,
                                  std::span<const std::uint64_t> stream) {
  const std::optional<std::int64_t> count = element_count(shape);
  if (!count) throw UsageError(fmt::format("an array of the shape {} fits no machine", to_string(shape)));
  std::vector<float> values(static_cast<std::size_t>(*count));
  RandomStream draws(stream);
  std::visit(
      Overloaded{[&](const Constant& its) { std::ranges::fill(values, static_cast<float>(its.value)); },
                 [&](const Uniform& its) { fill_uniform(values, its.low, its.high, draws); },
                 [&](const Normal& its) { fill_normal(values, its.std, draws); },
                 [&](const Xavier& its) {
                   const Fans fans = fans_of(shape);
                   fill(values, its.is_normal, std::sqrt(2 / (fans.in + fans.out)), draws);
                 },
                 [&](const Kaiming& its) { fill(values, its.is_normal, std::sqrt(2 / fans_of(shape).in), draws); },
                 [&](const Orthogonal&) {
                   fans_of(shape);
                   if (!values.empty()) fill_orthogonal(values, static_cast<std::size_t>(shape[0]), draws);
                 }},
      initializer);
  return values;
}

}  // namespace tutti
