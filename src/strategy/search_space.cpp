#include <tutti/strategy/search_space.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using nlohmann::ordered_json;
using search::Categorical;
using search::Condition;
using search::Float;
using search::Int;

constexpr std::array kScales = {"linear", "log", "reverse_log"};
constexpr std::int64_t kMostInt = std::int64_t{1} << 53;  // whole numbers that a double tells apart

Scale read_scale(const JsonValue& value) {
  const std::string& name = value.one_of({kScales.begin(), kScales.end()});
  return static_cast<Scale>(std::ranges::find(kScales, name) - kScales.begin());
}

std::string text_of(const JsonValue& value) { return value.raw().dump(); }

template <typename Range>
void read_scale_of(const JsonValue& object, Range& range) {
  if (const auto scale = object.find("scale")) range.scale = read_scale(*scale);
}

JsonValue end_of(const JsonValue& ends, std::size_t which) {
  if (!ends.is_array() || ends.size() != 2) throw ends.expected("the two ends of a range, as in [0.001, 1]");
  return ends.element(which);
}

bool is_among(const std::string& value, const std::vector<std::string>& values) {
  return std::ranges::any_of(values, [&](const std::string& its) { return is_same_json(its, value); });
}

// What is wrong with a range by itself; told at its place.
std::optional<std::string> why_not(const Float& range) {
  if (!std::isfinite(range.min) || !std::isfinite(range.max)) return "expected finite ends";
  if (!(range.min < range.max)) return fmt::format("the range from {} to {} is empty", range.min, range.max);
  if (!std::isfinite(range.max - range.min)) return "the range is too wide";
  if (range.scale == Scale::linear) return std::nullopt;
  if (!(range.min > 0))
    return fmt::format("a {} scale begins above 0, and the range begins with {}",
                       kScales[static_cast<std::size_t>(range.scale)], range.min);
  if (!std::isfinite(range.max / range.min) || !std::isfinite(range.max + range.min))
    return fmt::format("the range is too wide for a {} scale", kScales[static_cast<std::size_t>(range.scale)]);
  return std::nullopt;
}

std::optional<std::string> why_not(const Int& range) {
  if (range.min < -kMostInt || range.max > kMostInt) return "expected whole numbers of at most 2^53";
  if (range.min >= range.max) return fmt::format("the range from {} to {} is empty", range.min, range.max);
  if (range.scale != Scale::linear && range.min < 1)
    return fmt::format("a {} scale begins above 0, and the range begins with {}",
                       kScales[static_cast<std::size_t>(range.scale)], range.min);
  return std::nullopt;
}

std::optional<std::string> why_not(const Categorical& range) {
  if (range.values.size() < 2) return fmt::format("expected at least two values, found {}", range.values.size());
  for (std::size_t i = 0; i < range.values.size(); ++i) {
    if (!ordered_json::accept(range.values[i])) return fmt::format("this is no JSON: {}", range.values[i]);
    for (std::size_t j = 0; j < i; ++j) {
      if (is_same_json(range.values[i], range.values[j])) return fmt::format("{} is there twice", range.values[i]);
    }
  }
  return std::nullopt;
}

const SearchDimension* dimension_at(const SearchSpace& space, const std::string& path) {
  const auto found = std::ranges::find(space.dimensions, path, &SearchDimension::path);
  return found == space.dimensions.end() ? nullptr : &*found;
}

// What is wrong with a dimension by itself.
std::optional<std::string> why_not_one(const SearchDimension& dimension, const SearchSpace& space) {
  if (dimension.path.empty()) return "expected a path, found nothing";
  if (dimension_at(space, dimension.path) != &dimension) return "it is there twice";
  return std::visit([](const auto& range) { return why_not(range); }, dimension.range);
}

// Whose condition asks for one whose condition asks for one, and so on, back to the first; nothing where none does.
std::string circle_of(const SearchDimension& dimension, const SearchSpace& space) {
  std::string circle = dimension.path;
  const SearchDimension* its = &dimension;
  for (std::size_t i = 0; i < space.dimensions.size() && its != nullptr && its->when; ++i) {
    circle += fmt::format("{} asks for {}", i == 0 ? "" : ", which", its->when->path);
    its = dimension_at(space, its->when->path);
    if (its == &dimension) return circle;
  }
  return "";
}

// What is wrong with the condition of a dimension, where all are right by themselves.
std::optional<std::string> why_condition_cannot_be(const SearchDimension& dimension, const SearchSpace& space) {
  if (!dimension.when) return std::nullopt;
  const Condition& when = *dimension.when;
  const SearchDimension* other = dimension_at(space, when.path);
  if (other == nullptr) return fmt::format("\"when\" asks for {}, and no dimension has that path", when.path);
  if (const std::string circle = circle_of(dimension, space); !circle.empty())
    return fmt::format("its condition goes in a circle: {}", circle);
  if (when.values.empty()) return "\"when\" has no values";
  if (std::holds_alternative<Float>(other->range))
    return fmt::format("\"when\" asks for a value of {}, which has a range of numbers with a point", when.path);
  for (const std::string& value : when.values) {
    if (!ordered_json::accept(value)) return fmt::format("this is no JSON: {}", value);
    const auto* categories = std::get_if<Categorical>(&other->range);
    if (categories != nullptr && !is_among(value, categories->values))
      return fmt::format("{} never is {}; it is one of {}", when.path, value, fmt::join(categories->values, ", "));
    const auto* whole = std::get_if<Int>(&other->range);
    if (whole == nullptr) continue;
    const ordered_json number = ordered_json::parse(value);
    if (!number.is_number_integer() || number < whole->min || number > whole->max)
      return fmt::format("{} never is {}; it is a whole number from {} to {}", when.path, value, whole->min,
                         whole->max);
  }
  return std::nullopt;
}

search::Range read_range(const JsonValue& object, std::vector<std::string> other_keys) {
  const std::vector<std::string> kinds = {"float", "int", "categorical"};
  if (!object.is_object()) throw object.expected(R"(a range, as in {"float": [0.001, 1], "scale": "log"})");
  std::optional<std::string> kind;
  for (const std::string& name : kinds) {
    if (!object.find(name)) continue;
    if (kind) throw object.at(name).error(fmt::format("there is \"{}\", too; expected one of the two", *kind));
    kind = name;
  }
  if (!kind) {
    if (object.find("conditional"))
      throw object.at("conditional")
          .error(R"(a condition within a condition; expected a range, and the name of another dimension in "when")");
    const auto meant = [&]() -> std::optional<std::string> {
      for (const std::string& key : object.keys()) {
        if (auto nearest = nearest_name(key, kinds)) return nearest;
      }
      return std::nullopt;
    }();
    throw object.error(fmt::format("expected one of the keys \"float\", \"int\", \"categorical\" or \"conditional\"{}",
                                   meant ? fmt::format("; did you mean \"{}\"?", *meant) : ""));
  }
  const JsonValue its = object.at(*kind);
  other_keys.push_back(*kind);
  if (*kind != "categorical") other_keys.emplace_back("scale");
  object.refuse_other_keys(other_keys);
  search::Range range;
  if (*kind == "float") {
    Float found{.min = end_of(its, 0).number(), .max = end_of(its, 1).number()};
    read_scale_of(object, found);
    range = found;
  } else if (*kind == "int") {
    Int found{.min = end_of(its, 0).integer(), .max = end_of(its, 1).integer()};
    read_scale_of(object, found);
    range = found;
  } else {
    Categorical found;
    for (const JsonValue& value : its.elements()) found.values.push_back(text_of(value));
    range = std::move(found);
  }
  return range;
}

Condition read_condition(const JsonValue& value) {
  if (!value.is_object() || value.keys().size() != 1)
    throw value.expected(R"(the path of another dimension and its values, as in {"optimizer.name": ["sgd"]})");
  Condition condition{.path = value.keys().front(), .values = {}};
  const JsonValue wanted = value.at(condition.path);
  if (wanted.is_array()) {
    for (const JsonValue& one : wanted.elements()) condition.values.push_back(text_of(one));
  } else {
    condition.values.push_back(text_of(wanted));
  }
  return condition;
}

ordered_json range_json(const search::Range& range) {
  ordered_json json;
  const auto write = [&]<typename Number>(const char* key, Number min, Number max, Scale scale) {
    json[key] = {min, max};
    if (scale != Scale::linear) json["scale"] = kScales[static_cast<std::size_t>(scale)];
  };
  if (const auto* its = std::get_if<Float>(&range)) write("float", its->min, its->max, its->scale);
  if (const auto* its = std::get_if<Int>(&range)) write("int", its->min, its->max, its->scale);
  if (const auto* its = std::get_if<Categorical>(&range)) {
    json["categorical"] = ordered_json::array();
    for (const std::string& value : its->values) json["categorical"].push_back(ordered_json::parse(value));
  }
  return json;
}

}  // namespace

bool is_same_json(const std::string& one, const std::string& other) {
  return ordered_json::parse(one) == ordered_json::parse(other);
}

SearchSpace search_space_from_json(const JsonValue& value) {
  if (!value.is_object() || value.keys().empty())
    throw value.expected(R"(what to search, as in {"optimizer.lr": {"float": [0.001, 1], "scale": "log"}})");
  SearchSpace space;
  for (const std::string& path : value.keys()) {
    const JsonValue its = value.at(path);
    SearchDimension dimension{.path = path, .range = {}};
    const auto inside = its.is_object() ? its.find("conditional") : std::nullopt;
    if (inside) {
      its.refuse_other_keys({"conditional", "when"});
      dimension.range = read_range(*inside, {});
      dimension.when = read_condition(its.at("when"));
    } else {
      dimension.range = read_range(its, {});
    }
    space.dimensions.push_back(std::move(dimension));
    if (const auto why = why_not_one(space.dimensions.back(), space)) throw its.error(*why);
  }
  for (const SearchDimension& dimension : space.dimensions) {
    if (const auto why = why_condition_cannot_be(dimension, space)) throw value.at(dimension.path).error(*why);
  }
  return space;
}

nlohmann::ordered_json to_json(const SearchSpace& space) {
  ordered_json json = ordered_json::object();
  for (const SearchDimension& dimension : space.dimensions) {
    ordered_json range = range_json(dimension.range);
    if (dimension.when) {
      ordered_json values = ordered_json::array();
      for (const std::string& value : dimension.when->values) values.push_back(ordered_json::parse(value));
      range = {{"conditional", std::move(range)}, {"when", {{dimension.when->path, std::move(values)}}}};
    }
    json[dimension.path] = std::move(range);
  }
  return json;
}

void validate(const SearchSpace& space) {
  for (const auto& why_not_its : {why_not_one, why_condition_cannot_be}) {
    for (const SearchDimension& dimension : space.dimensions) {
      if (const auto why = why_not_its(dimension, space))
        throw UsageError(fmt::format("the search space: {}: {}", dimension.path, *why));
    }
  }
}

std::vector<const SearchDimension*> in_order(const SearchSpace& space) {
  std::vector<const SearchDimension*> waiting;
  for (const SearchDimension& dimension : space.dimensions) waiting.push_back(&dimension);
  std::vector<const SearchDimension*> order;
  const auto is_next = [&](const SearchDimension* its) {
    return !its->when || std::ranges::find(order, its->when->path, &SearchDimension::path) != order.end();
  };
  for (auto next = std::ranges::find_if(waiting, is_next); next != waiting.end();
       next = std::ranges::find_if(waiting, is_next)) {
    order.push_back(*next);
    waiting.erase(next);
  }
  order.insert(order.end(), waiting.begin(), waiting.end());
  return order;
}

// --- what was found ---

const HyperParameter* find_in(const HyperParameters& values, std::string_view path) {
  const auto found = std::ranges::find(values, path, &HyperParameter::path);
  return found == values.end() ? nullptr : &*found;
}

namespace {

ordered_json json_in(const HyperParameters& values, std::string_view path) {
  const HyperParameter* its = find_in(values, path);
  if (its == nullptr) throw UsageError(fmt::format("there is no hyper-parameter \"{}\"", path));
  ordered_json json = ordered_json::parse(its->json, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw UsageError(fmt::format("the hyper-parameter \"{}\" is no JSON: {}", path, its->json));
  return json;
}

}  // namespace

double number_in(const HyperParameters& values, std::string_view path) {
  const ordered_json json = json_in(values, path);
  if (!json.is_number()) throw UsageError(fmt::format("{}: expected a number, found {}", path, json.dump()));
  return json.get<double>();
}

std::int64_t integer_in(const HyperParameters& values, std::string_view path) {
  const ordered_json json = json_in(values, path);
  if (!json.is_number_integer())
    throw UsageError(fmt::format("{}: expected a whole number, found {}", path, json.dump()));
  return json.get<std::int64_t>();
}

std::string text_in(const HyperParameters& values, std::string_view path) {
  const ordered_json json = json_in(values, path);
  return json.is_string() ? json.get<std::string>() : json.dump();
}

nlohmann::ordered_json to_json(const HyperParameters& values) {
  ordered_json json = ordered_json::object();
  for (const HyperParameter& its : values) json[its.path] = ordered_json::parse(its.json);
  return json;
}

HyperParameters hyper_parameters_from_json(const JsonValue& value) {
  HyperParameters values;
  for (const std::string& path : value.keys()) values.push_back({path, text_of(value.at(path))});
  return values;
}

bool is_active(const SearchDimension& dimension, const HyperParameters& values) {
  if (!dimension.when) return true;
  const HyperParameter* other = find_in(values, dimension.when->path);
  return other != nullptr && is_among(other->json, dimension.when->values);
}

namespace {

bool is_within(const search::Range& range, const std::string& text) {
  if (const auto* categories = std::get_if<Categorical>(&range)) return is_among(text, categories->values);
  const ordered_json value = ordered_json::parse(text);
  if (const auto* whole = std::get_if<Int>(&range))
    return value.is_number_integer() && value >= whole->min && value <= whole->max;
  const auto& numbers = std::get<Float>(range);
  return value.is_number() && value.get<double>() >= numbers.min && value.get<double>() <= numbers.max;
}

}  // namespace

std::optional<std::string> why_not_in(const SearchSpace& space, const HyperParameters& values) {
  std::size_t active = 0;
  for (const SearchDimension& dimension : space.dimensions) {
    if (!is_active(dimension, values)) continue;
    ++active;
    const HyperParameter* its = find_in(values, dimension.path);
    if (its == nullptr) return fmt::format("{} is missing", dimension.path);
    if (!ordered_json::accept(its->json)) return fmt::format("{}: this is no JSON: {}", dimension.path, its->json);
    if (!is_within(dimension.range, its->json))
      return fmt::format("{}: {} is not in the search space, {}", dimension.path, its->json,
                         range_json(dimension.range).dump());
  }
  if (active == values.size()) return std::nullopt;
  for (const HyperParameter& its : values) {
    const auto known = std::ranges::find(space.dimensions, its.path, &SearchDimension::path);
    if (known == space.dimensions.end()) return fmt::format("{} is not searched", its.path);
    if (!is_active(*known, values)) return fmt::format("{} is there, and its condition does not hold", its.path);
  }
  return "a value is there twice";
}

}  // namespace tutti
