// What a population searches: values of a run file, by their paths, and where each may lie. In JSON:
//
//   {"optimizer.lr": {"float": [1e-4, 1], "scale": "log"},
//    "graph.hidden.units": {"int": [16, 256]},
//    "optimizer.name": {"categorical": ["sgd", "adam"]},
//    "optimizer.momentum": {"conditional": {"float": [0.5, 0.99]}, "when": {"optimizer.name": "sgd"}}}
//
// What was found is a list of values, each the text of its JSON, in the order in which they are drawn:
//
//   HyperParameters found = {{"optimizer.lr", "0.013"}, {"optimizer.name", "\"adam\""}};
//   number_in(found, "optimizer.lr");       // 0.013
//   text_in(found, "optimizer.name");       // adam
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>

namespace tutti {

// How values lie between the ends of a range: evenly; evenly in their logarithm, so that small ones have more room;
// the same mirrored, so that large ones have it.
enum class Scale { linear, log, reverse_log };

namespace search {

struct Float {
  double min = 0;
  double max = 1;
  Scale scale = Scale::linear;
  friend bool operator==(const Float&, const Float&) = default;
};

struct Int {
  std::int64_t min = 0;
  std::int64_t max = 1;
  Scale scale = Scale::linear;
  friend bool operator==(const Int&, const Int&) = default;
};

// Neighbours are those beside each other.
struct Categorical {
  std::vector<std::string> values;  // texts of JSON: "\"sgd\"", "3", "{\"name\":\"cosine\"}"
  friend bool operator==(const Categorical&, const Categorical&) = default;
};

using Range = std::variant<Float, Int, Categorical>;

// A dimension is there only where another has one of these values, wherever the two stand.
struct Condition {
  std::string path;
  std::vector<std::string> values;  // texts of JSON
  friend bool operator==(const Condition&, const Condition&) = default;
};

}  // namespace search

struct SearchDimension {
  std::string path;
  search::Range range;
  std::optional<search::Condition> when = {};  // Conditional
  friend bool operator==(const SearchDimension&, const SearchDimension&) = default;
};

struct SearchSpace {
  std::vector<SearchDimension> dimensions;
  friend bool operator==(const SearchSpace&, const SearchSpace&) = default;
};

// Empty ranges, a log scale over zero, a category that is there twice, a condition on what is not searched, conditions
// that go in a circle: each is refused by its path. Paths themselves are not looked up.
SearchSpace search_space_from_json(const JsonValue& value);
nlohmann::ordered_json to_json(const SearchSpace& space);
// The same for a space that was put together in C++: a UsageError.
void validate(const SearchSpace& space);

// As values are drawn, since a condition asks for one that is known: each after the one that its condition asks for,
// and otherwise as they stand. Those of conditions that nothing can fulfil come last.
std::vector<const SearchDimension*> in_order(const SearchSpace& space);

// --- what was found ---

struct HyperParameter {
  std::string path;
  std::string json;  // its value as text
  friend bool operator==(const HyperParameter&, const HyperParameter&) = default;
};

// Those that are there, in the order in which they are drawn.
using HyperParameters = std::vector<HyperParameter>;

// Of two texts of JSON: 1 and 1.0 are one and the same where it is read.
bool is_same_json(const std::string& one, const std::string& other);

const HyperParameter* find_in(const HyperParameters& values, std::string_view path);
// A UsageError where it is not there, or something else.
double number_in(const HyperParameters& values, std::string_view path);
std::int64_t integer_in(const HyperParameters& values, std::string_view path);
// Without its quotes where it is a string, otherwise its JSON.
std::string text_in(const HyperParameters& values, std::string_view path);

// {"optimizer.lr": 0.013, ...}
nlohmann::ordered_json to_json(const HyperParameters& values);
HyperParameters hyper_parameters_from_json(const JsonValue& value);

// Is the dimension there, where others have these values?
bool is_active(const SearchDimension& dimension, const HyperParameters& values);
// A sentence about why these could not be of the space: one too many, missing, or out of its range.
std::optional<std::string> why_not_in(const SearchSpace& space, const HyperParameters& values);

}  // namespace tutti
