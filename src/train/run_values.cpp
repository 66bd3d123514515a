#include "run_values.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/explore.hpp>

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
    PathRule{"phases", false, "generations are"},
    PathRule{"workers", false, "there are the same for all members"},
    PathRule{"clients", false, "there are the same for all members"},
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

// Of a dimension, all where they are few, or those at its ends.
std::vector<std::string> tried_of(const search::Range& range) {
  constexpr std::int64_t kFew = 64;
  if (const auto* its = std::get_if<search::Categorical>(&range)) return its->values;
  if (const auto* its = std::get_if<search::Float>(&range))
    return {fmt::format("{}", its->min), fmt::format("{}", its->max)};
  const auto& its = std::get<search::Int>(range);
  std::vector<std::string> values;
  for (std::int64_t value = its.min; value <= its.max; value += its.max - its.min < kFew ? 1 : its.max - its.min)
    values.push_back(fmt::format("{}", value));
  return values;
}

// A value of a dimension, with those of others that it depends on: once for each that it may depend on.
std::vector<HyperParameters> with_conditions(const SearchSpace& space, const SearchDimension& dimension,
                                             const std::string& value) {
  std::vector<HyperParameters> all{HyperParameters()};
  if (dimension.when) {
    all.clear();
    const auto other = std::ranges::find(space.dimensions, dimension.when->path, &SearchDimension::path);
    for (const std::string& its : dimension.when->values) {
      for (HyperParameters& values : with_conditions(space, *other, its)) all.push_back(std::move(values));
    }
  }
  for (HyperParameters& values : all) values.push_back({dimension.path, value});
  return all;
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

namespace {

// Some at random, as members will have them: each may be possible by itself, and not with another.
void refuse_impossible_draws(const JsonValue& search, const Run& run) {
  constexpr std::uint64_t kDraws = 32;
  const Json document = document_of_member(run);
  for (std::uint64_t number = 0; number < kDraws; ++number) {
    RandomStream draws({number});
    const HyperParameters values = draw_values(run.search, draws);
    try {
      (void)read_run_like(with_values(document, all_values(run.search, values)).root(), run);
    } catch (const UsageError& error) {
      throw search.error(fmt::format("{} cannot be together: {}", to_json(values).dump(), without_place(error)));
    }
  }
}

// What would be set first would be lost.
void refuse_overlaps(const JsonValue& search, const SearchSpace& space) {
  for (const SearchDimension& one : space.dimensions) {
    for (const SearchDimension& other : space.dimensions) {
      if (&one != &other && is_at_or_below(one.path, other.path))
        throw search.at(one.path).error(fmt::format("it is a part of {}, which is searched, too", other.path));
    }
  }
}

}  // namespace

void refuse_impossible_search(const JsonValue& search, const Run& run) {
  const auto& strategy = std::get<strategy::PopulationBased>(run.graph.effective_strategy());
  const Json document = document_of_member(run);
  refuse_overlaps(search, run.search);
  for (const SearchDimension& dimension : run.search.dimensions) {
    const JsonValue place = search.at(dimension.path);
    if (const auto why = why_not_searched(dimension.path, run)) throw place.error(*why);
    std::optional<std::vector<std::string>> layout;
    for (const std::string& value : tried_of(dimension.range)) {
      for (const HyperParameters& values : with_conditions(run.search, dimension, value)) {
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
  refuse_impossible_draws(search, run);
}

}  // namespace tutti::detail
