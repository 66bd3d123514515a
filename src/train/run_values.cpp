#include "run_values.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
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

// A rule against this path, or against a part of what stands there.
const PathRule* rule_against(std::string_view path) {
  const PathRule* rule = rule_for(path);
  if (rule != nullptr && !rule->is_allowed) return rule;
  const auto part = std::ranges::find_if(
      kRules, [&](const PathRule& one) { return !one.is_allowed && is_at_or_below(one.path, path); });
  return part == kRules.end() ? nullptr : &*part;
}

std::optional<std::string> why_not_searched(const std::string& path, const Run& run) {
  if (const PathRule* rule = rule_against(path)) {
    if (is_at_or_below(path, rule->path)) return fmt::format("this cannot be searched: {}", rule->why);
    return fmt::format("this cannot be searched, since {} is a part of it: {}", rule->path, rule->why);
  }
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
  for (const GraphNode& node : graph.nodes()) {
    for (const BufferSpec& buffer : node.resolved.buffers)
      layout.push_back(fmt::format("{}.{} {}", node.path, buffer.name, to_string(buffer.shape)));
  }
  return layout;
}

// The strategies of what is in a graph; by path, where they have one of their own. Not the graph's, which a member has
// from its population, nor the same once more.
std::map<std::string, TrainingStrategy> strategies_inside(const Graph& graph) {
  std::map<std::string, TrainingStrategy> all;
  for (const Subgraph& subgraph : graph.subgraphs()) {
    if (!subgraph.path.empty() && subgraph.strategy &&
        !std::holds_alternative<strategy::PopulationBased>(*subgraph.strategy))
      all.emplace(subgraph.path, *subgraph.strategy);
  }
  return all;
}

// In a graph that has a population there is no other: subgraphs that name it have the strategy of the graph.
void leave_populations_out(Json& nodes) {
  for (Json& node : nodes) {
    const auto strategy = node.find("strategy");
    if (strategy != node.end() && strategy->value("type", Json()) == "PopulationBased") node.erase(strategy);
    if (const auto inside = node.find("nodes"); inside != node.end()) leave_populations_out(*inside);
  }
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

bool may_change_between_phases(std::string_view path) { return rule_against(path) == nullptr; }

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
  leave_populations_out(document["graph"]["nodes"]);
  return document;
}

Run run_of_member(const Run& run, const HyperParameters& values) {
  return read_run_like(with_values(document_of_member(run), all_values(run.search, values)).root(), run);
}

bool have_same_weights(const Run& one, const Run& other) { return layout_of(one.graph) == layout_of(other.graph); }

bool have_same_strategies(const Run& one, const Run& other) {
  return strategies_inside(one.graph) == strategies_inside(other.graph);
}

namespace {

// Refuses what members cannot be, or cannot differ in, by reading their files as they will be.
class SearchCheck {
 public:
  SearchCheck(const JsonValue& search, const Run& run)
      : search_(search),
        run_(run),
        document_(document_of_member(run)),
        takes_over_(!std::holds_alternative<strategy::None>(
            std::get<strategy::PopulationBased>(run.graph.effective_strategy()).exploit)) {}

  void refuse_impossible() {
    refuse_overlaps();
    for (const SearchDimension& dimension : run_.search.dimensions) refuse_impossible(dimension);
    for (const HyperParameters& values : tried_later_) refuse_unless_drawn(values);
    refuse_impossible_draws();
  }

 private:
  // Where in the document; nothing where the path leads nowhere.
  std::optional<std::string> place_of(const std::string& path) const {
    const std::string mark = "the place that a path leads to";
    try {
      const Json flat = JsonDocument::parse(document_.dump()).with(path, Json(mark).dump()).root().raw().flatten();
      for (const auto& [place, value] : flat.items()) {
        if (value == mark) return place;
      }
      return std::nullopt;
    } catch (const UsageError&) {
      return std::nullopt;  // of which one is told where its values are tried
    }
  }

  // What would be set first would be lost, however the two are spelled.
  void refuse_overlaps() const {
    std::vector<std::optional<std::string>> places;
    for (const SearchDimension& one : run_.search.dimensions) places.push_back(place_of(one.path));
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (std::size_t j = 0; j < places.size(); ++j) {
        if (i == j) continue;
        const std::string& one = run_.search.dimensions[i].path;
        const std::string& other = run_.search.dimensions[j].path;
        const auto refuse = [&](const std::string& what) {
          throw search_.at(one).error(fmt::format("it is {} {}, which is searched, too", what, other));
        };
        if (places[i] && places[i] == places[j]) refuse("another name for");
        if (is_at_or_below(one, other) || (places[i] && places[j] && places[i]->starts_with(*places[j] + "/")))
          refuse("a part of");
      }
    }
  }

  Run read(const HyperParameters& values) const { return read_run_like(with_values(document_, values).root(), run_); }

  void refuse_impossible(const SearchDimension& dimension) {
    const JsonValue place = search_.at(dimension.path);
    if (const auto why = why_not_searched(dimension.path, run_)) throw place.error(*why);
    std::optional<std::vector<std::string>> layout;
    for (const std::string& value : tried_of(dimension.range)) {
      for (const HyperParameters& values : with_conditions(run_.search, dimension, value)) {
        std::optional<Run> member = with_others_of_the_file(values);
        if (!member) continue;
        refuse_other_strategies(place, *member);
        if (!layout) layout = layout_of(member->graph);
        if (layout_of(member->graph) != *layout && takes_over_) throw place.error(kOtherShape);
      }
    }
  }

  // As the file has them; those whose conditions do not hold are left out. Nothing where that cannot be: a value may
  // need one of another dimension.
  std::optional<Run> with_others_of_the_file(const HyperParameters& values) {
    HyperParameters all = values;
    for (const SearchDimension& other : run_.search.dimensions) {
      if (other.when && find_in(values, other.path) == nullptr && !is_active(other, values))
        all.push_back({other.path, kLeftOut});
    }
    try {
      return read(all);
    } catch (const UsageError&) {
      tried_later_.push_back(values);
      return std::nullopt;
    }
  }

  // These, the last of which is tried, among others at random.
  void refuse_unless_drawn(const HyperParameters& values) const {
    constexpr std::uint64_t kTries = 16;
    const HyperParameter& tried = values.back();
    std::optional<std::string> why;
    for (std::uint64_t number = 0; number < kTries; ++number) {
      RandomStream draws({number});
      std::optional<Run> member;
      try {
        member = read(all_values(run_.search, drawn_around(values, draws)));
      } catch (const UsageError& error) {
        if (!why) why = without_place(error);
        continue;
      }
      return refuse_other_strategies(search_.at(tried.path), *member);
    }
    throw search_.at(tried.path).error(fmt::format("{} cannot be: {}", tried.json, *why));
  }

  // Drawn, but for those that are given, whose conditions hold.
  HyperParameters drawn_around(const HyperParameters& given, RandomStream& draws) const {
    HyperParameters values;
    for (const SearchDimension* dimension : in_order(run_.search)) {
      if (const HyperParameter* its = find_in(given, dimension->path)) {
        values.push_back(*its);
      } else if (is_active(*dimension, values)) {
        SearchDimension alone = *dimension;
        alone.when.reset();
        values.push_back(draw_values({.dimensions = {std::move(alone)}}, draws).front());
      }
    }
    return values;
  }

  // As members will have them: each may be possible by itself, and not with another.
  void refuse_impossible_draws() const {
    constexpr std::uint64_t kDraws = 32;
    std::optional<std::vector<std::string>> layout;
    for (std::uint64_t number = 0; number < kDraws; ++number) {
      RandomStream draws({number});
      const HyperParameters values = draw_values(run_.search, draws);
      std::optional<Run> member;
      try {
        member = read(all_values(run_.search, values));
      } catch (const UsageError& error) {
        throw search_.error(fmt::format("{} cannot be together: {}", to_json(values).dump(), without_place(error)));
      }
      refuse_other_strategies(search_, *member);
      if (!layout) layout = layout_of(member->graph);
      if (layout_of(member->graph) != *layout && takes_over_) throw search_.error(kOtherShape);
    }
  }

  void refuse_other_strategies(const JsonValue& place, const Run& member) const {
    if (!have_same_strategies(run_, member))
      throw place.error(
          "this cannot be searched: it changes the strategy of a subgraph, which is the same for all members");
  }

  static constexpr const char* kOtherShape =
      "it changes the shape of weights, or which there are, and members could no longer take them over from each "
      "other; "
      R"(expected "exploit": {"method": "None"})";

  const JsonValue& search_;
  const Run& run_;
  Json document_;
  bool takes_over_;
  std::vector<HyperParameters> tried_later_;
};

}  // namespace

void refuse_impossible_search(const JsonValue& search, const Run& run) { SearchCheck(search, run).refuse_impossible(); }

}  // namespace tutti::detail
