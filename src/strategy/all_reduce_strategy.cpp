#include <tutti/strategy/all_reduce_strategy.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti {
namespace {

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<AllReduceStrategy>> kNames = {
    "Auto", "Centralized", "Tree", "Ring", "SharedSlices", "RecursiveDoubling", "HalvingDoubling", "Gloo"};

std::string_view name_of(const AllReduceStrategy& strategy) { return kNames[strategy.index()]; }

std::optional<AllReduceStrategy> strategy_named(std::string_view name) {
  for (const AllReduceStrategy& strategy : all_reduce_strategies()) {
    if (name_of(strategy) == name) return strategy;
  }
  return std::nullopt;
}

std::optional<AllReduceStrategy> strategy_nearest_to(std::string_view name) {
  const auto meant = nearest_name(name, {kNames.begin(), kNames.end()});
  return meant ? strategy_named(*meant) : std::nullopt;
}

// {"Tree": 2}, with the blank that people write and nlohmann-json does not.
std::string json_text(const AllReduceStrategy& strategy) {
  if (const Tree* tree = std::get_if<Tree>(&strategy)) return fmt::format("{{\"Tree\": {}}}", tree->arity);
  return fmt::format("\"{}\"", name_of(strategy));
}

// "Auto, Centralized, ... or HalvingDoubling", each as `write` writes it.
std::string every_strategy(std::string (*write)(const AllReduceStrategy&)) {
  std::string result;
  for (const AllReduceStrategy& strategy : all_reduce_strategies()) {
    if (!result.empty()) result += strategy.index() + 1 == kNames.size() ? " or " : ", ";
    result += write(strategy);
  }
  return result;
}

UsageError unknown(const JsonValue& value) {
  const std::string expected = fmt::format("an all-reduce strategy: {}", every_strategy(json_text));
  const auto meant = value.is_string() ? strategy_nearest_to(value.string()) : std::nullopt;
  if (!meant) return value.expected(expected);
  return value.error(
      fmt::format("expected {}; found \"{}\", did you mean {}?", expected, value.string(), json_text(*meant)));
}

Tree tree_from_json(const JsonValue& object) {
  const std::vector<std::string> keys = object.keys();
  if (keys.empty()) throw unknown(object);
  if (const auto meant = strategy_nearest_to(keys.front()); meant && !std::holds_alternative<Tree>(*meant)) {
    throw object.error(fmt::format("{} stands alone: expected {}, found an object with the key \"{}\"", name_of(*meant),
                                   json_text(*meant), keys.front()));
  }
  object.refuse_other_keys({"Tree"});
  const JsonValue arity = object.at("Tree");
  arity.integer({.min = 1});  // asked apart from the upper bound, which would only distract in the message
  return {.arity = static_cast<int>(arity.integer({.max = std::numeric_limits<int>::max()}))};
}

}  // namespace

std::vector<AllReduceStrategy> all_reduce_strategies() {
  return {Auto{}, Centralized{}, Tree{}, Ring{}, SharedSlices{}, RecursiveDoubling{}, HalvingDoubling{}, Gloo{}};
}

bool is_of_engine(const AllReduceStrategy& strategy) { return std::holds_alternative<Gloo>(strategy); }

std::vector<AllReduceStrategy> own_all_reduce_strategies() {
  std::vector<AllReduceStrategy> strategies = all_reduce_strategies();
  std::erase_if(strategies, is_of_engine);
  return strategies;
}

void validate(const AllReduceStrategy& strategy) {
  const Tree* tree = std::get_if<Tree>(&strategy);
  if (tree != nullptr && tree->arity < 1)
    throw UsageError(fmt::format("the arity of a Tree must be at least 1, found {}", tree->arity));
}

std::string to_string(const AllReduceStrategy& strategy) {
  if (const Tree* tree = std::get_if<Tree>(&strategy)) return fmt::format("Tree:{}", tree->arity);
  return std::string(name_of(strategy));
}

AllReduceStrategy parse_all_reduce_strategy(std::string_view text) {
  if (text.starts_with('{') || text.starts_with('"'))
    return all_reduce_strategy_from_json(JsonDocument::parse(text, "all-reduce strategy").root());
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  auto strategy = strategy_named(name);
  if (!strategy) {
    const auto meant = strategy_nearest_to(name);
    throw UsageError(fmt::format("'{}' is no all-reduce strategy; expected {}{}", text, every_strategy(to_string),
                                 meant ? fmt::format("; did you mean {}?", name_of(*meant)) : ""));
  }
  if (colon == text.size()) return *strategy;
  Tree* tree = std::get_if<Tree>(&*strategy);
  if (tree == nullptr) throw UsageError(fmt::format("{0} stands alone: expected '{0}', found '{1}'", name, text));
  const std::string_view arity = text.substr(colon + 1);
  const char* end = arity.data() + arity.size();
  const auto [rest, problem] = std::from_chars(arity.data(), end, tree->arity);
  if (problem != std::errc{} || rest != end)
    throw UsageError(
        fmt::format("the arity of a Tree must be a whole number of at least 1, as in Tree:2; found '{}'", text));
  validate(*strategy);
  return *strategy;
}

nlohmann::json to_json(const AllReduceStrategy& strategy) {
  if (const Tree* tree = std::get_if<Tree>(&strategy)) return nlohmann::json::object({{"Tree", tree->arity}});
  return name_of(strategy);
}

AllReduceStrategy all_reduce_strategy_from_json(const JsonValue& value) {
  if (value.is_object()) return tree_from_json(value);
  const auto strategy = value.is_string() ? strategy_named(value.string()) : std::nullopt;
  if (!strategy) throw unknown(value);
  if (std::holds_alternative<Tree>(*strategy)) throw value.expected(R"({"Tree": 2}, a tree with its arity)");
  return *strategy;
}

}  // namespace tutti
