#include "run_values.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLeftOut = "null";
constexpr const char* kRunName = "the run";

struct PathRule {
  std::string_view path;  // and all below
  bool is_allowed;
  std::string_view why = {};
};

// The longest that fits decides.
constexpr std::array kRules = {
    PathRule{"optimizer", true},
    PathRule{"schedule", true},
    PathRule{"loss", true},
    PathRule{"graph", true},
    PathRule{"graph.strategy", false, "all members are trained by the same one"},
    PathRule{"graph.inputs", false, "the data says what they are"},
    PathRule{"graph.outputs", false, "what is evaluated would be another for each member"},
    PathRule{"train.clip_norm", true},
    PathRule{"train.accumulate", true},
    PathRule{"train", false, "all members are trained for as long, and compared in the same way"},
    PathRule{"data.batch_size", true},
    PathRule{"data.augment", true},
    PathRule{"data.shuffle", true},
    PathRule{"data.drop_last", true},
    PathRule{"data", false, "members are compared by the same rows"},
    PathRule{"seed", false, "each member has one of its own"},
    PathRule{"metrics", false, "members are compared by the same"},
    PathRule{"output", false, "there is one for all members"},
    PathRule{"checkpoints", false, "they are written for all members"},
    PathRule{"search", false, "it is what is searched"},
};

bool is_at_or_below(std::string_view path, std::string_view above) {
  return path.starts_with(above) &&
         (path.size() == above.size() || path[above.size()] == '.' || path[above.size()] == '[');
}

const PathRule* rule_for(std::string_view path) {
  const PathRule* rule = nullptr;
  for (const PathRule& one : kRules) {
    if (is_at_or_below(path, one.path) && (rule == nullptr || one.path.size() > rule->path.size())) rule = &one;
  }
  return rule;
}

std::optional<std::string> why_not_searched(const std::string& path, const Run& run) {
  const PathRule* rule = rule_for(path);
  if (rule != nullptr && !rule->is_allowed) return fmt::format("this cannot be searched: {}", rule->why);
  if (is_at_or_below(path, "loss") && run.train.best_by == "loss")
    return "this cannot be searched: members are compared by the loss, which would be another for each; train.best_by "
           "can name a metric";
  return std::nullopt;
}

// Of a dimension, those at its ends.
std::vector<std::string> ends_of(const search::Range& range) {
  if (const auto* its = std::get_if<search::Categorical>(&range)) return its->values;
  if (const auto* its = std::get_if<search::Int>(&range))
    return {fmt::format("{}", its->min), fmt::format("{}", its->max)};
  const auto& its = std::get<search::Float>(range);
  return {fmt::format("{}", its.min), fmt::format("{}", its.max)};
}

// A value of a dimension, with those of others that it depends on.
HyperParameters with_conditions(const SearchSpace& space, const SearchDimension& dimension, const std::string& value) {
  HyperParameters values;
  if (dimension.when) {
    const auto other = std::ranges::find(space.dimensions, dimension.when->path, &SearchDimension::path);
    values = with_conditions(space, *other, dimension.when->values.front());
  }
  values.push_back({dimension.path, value});
  return values;
}

std::vector<std::string> layout_of(const Graph& graph) {
  std::vector<std::string> layout;
  for (const GraphParameter& parameter : graph.parameters())
    layout.push_back(fmt::format("{} {}", parameter.path, to_string(parameter.shape)));
  return layout;
}

}  // namespace

std::string without_place(const UsageError& error) {
  const std::string_view what = error.what();
  const bool has_place = what.starts_with("--set ") || what.starts_with(kRunName);
  return std::string(has_place ? what.substr(std::min(what.find(": ") + 2, what.size())) : what);
}

JsonDocument with_values(const nlohmann::ordered_json& document, const HyperParameters& values) {
  JsonDocument result = JsonDocument::parse(document.dump(), kRunName);
  for (const HyperParameter& value : values)
    result = value.json == kLeftOut ? result.without(value.path) : result.with(value.path, value.json);
  return result;
}

bool may_change_between_phases(std::string_view path) {
  const PathRule* rule = rule_for(path);
  return rule == nullptr || rule->is_allowed;
}

Run run_of_phase(const Run& run, const RunPhase& phase) {
  Json document = *run.written;
  document.erase("phases");
  Run result = read_run_like(with_values(document, phase.set).root(), run);
  if (phase.seed) result.seed = *phase.seed;
  return result;
}

HyperParameters all_values(const SearchSpace& space, const HyperParameters& values) {
  HyperParameters all;
  for (const SearchDimension& dimension : space.dimensions) {
    const HyperParameter* its = find_in(values, dimension.path);
    all.push_back({dimension.path, its == nullptr ? kLeftOut : its->json});
  }
  return all;
}

nlohmann::ordered_json document_of_member(const Run& run) {
  Json document = *run.written;
  document.erase("search");
  const auto& strategy = std::get<strategy::PopulationBased>(run.graph.effective_strategy());
  const TrainingStrategy inner = std::visit([](const auto& its) -> TrainingStrategy { return its; }, strategy.inner);
  document["graph"]["strategy"] = to_json(inner);
  return document;
}

Run run_of_member(const Run& run, const HyperParameters& values) {
  return read_run_like(with_values(document_of_member(run), all_values(run.search, values)).root(), run);
}

bool have_same_weights(const Run& one, const Run& other) { return layout_of(one.graph) == layout_of(other.graph); }

void refuse_impossible_search(const JsonValue& search, const Run& run) {
  const auto& strategy = std::get<strategy::PopulationBased>(run.graph.effective_strategy());
  const Json document = document_of_member(run);
  for (const SearchDimension& dimension : run.search.dimensions) {
    const JsonValue place = search.at(dimension.path);
    if (const auto why = why_not_searched(dimension.path, run)) throw place.error(*why);
    std::optional<std::vector<std::string>> layout;
    for (const std::string& value : ends_of(dimension.range)) {
      const HyperParameters values = with_conditions(run.search, dimension, value);
      std::vector<std::string> its_layout;
      // Others whose conditions do not hold are left out.
      HyperParameters all = values;
      for (const SearchDimension& other : run.search.dimensions) {
        if (other.when && find_in(values, other.path) == nullptr && !is_active(other, values))
          all.push_back({other.path, kLeftOut});
      }
      try {
        its_layout = layout_of(read_run_like(with_values(document, all).root(), run).graph);
      } catch (const UsageError& error) {
        throw place.error(fmt::format("{} cannot be: {}", value, without_place(error)));
      }
      if (!layout) layout = its_layout;
      if (its_layout != *layout && !std::holds_alternative<strategy::None>(strategy.exploit))
        throw place.error(
            "it changes the shape of weights, which members could no longer take over from each other; expected "
            R"("exploit": {"method": "None"})");
    }
  }
}

}  // namespace tutti::detail
