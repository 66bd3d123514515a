#include "parameter_reader.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/nearest_name.hpp>

namespace tutti {
namespace {

bool is_weight(const Shape& shape) { return shape.size() >= 2; }

Initializer read_initializer(const JsonValue& place, const Shape& shape) {
  const Initializer initial = initializer_from_json(place);
  const bool is_for_any = std::holds_alternative<initializer::Constant>(initial) ||
                          std::holds_alternative<initializer::Uniform>(initial) ||
                          std::holds_alternative<initializer::Normal>(initial);
  if (!is_for_any && !is_weight(shape))
    throw place.error(
        fmt::format("it is for weights of two dimensions or more, and this one has the shape {}", to_string(shape)));
  return initial;
}

// {"weight": ..., "bias": ...}, and not one for all weights.
bool is_by_name(const JsonValue& init) {
  return init.is_object() && !init.keys().empty() && std::ranges::none_of(init.keys(), [](const std::string& key) {
           return key == "constant" || key == "uniform" || key == "normal";
         });
}

std::vector<std::string> names_of(const Operator& its) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : its.parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

std::vector<std::size_t> ParameterReader::add(const Options& options, const GraphNode& node, bool is_private) {
  const std::optional<JsonValue> frozen = options.find("frozen");
  const double lr_factor = options.number("lr_factor", {.min = 0}, 1);
  const std::size_t first = parameters_.size();
  for (const ParameterSpec& its : node.resolved.parameters) {
    GraphParameter parameter{.path = fmt::format("{}.{}", node.path, its.name),
                             .shape = its.shape,
                             .initial = its.initial,
                             .is_frozen = frozen ? frozen->boolean() : its.is_frozen,
                             .lr_factor = lr_factor};
    by_path_.emplace(parameter.path, parameters_.size());
    parameters_.push_back(std::move(parameter));
    origins_.push_back({.is_of_module = node.resolved.make_module != nullptr, .is_private = is_private});
  }
  if (frozen) (void)frozen->boolean();  // of a node without parameters, too
  read_initializers(options, node, first, read_ties(options, node, first));
  std::vector<std::size_t> numbers(node.resolved.parameters.size());
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::set<std::string> ParameterReader::read_ties(const Options& options, const GraphNode& node, std::size_t first) {
  const std::optional<JsonValue> tied = options.find("tied");
  if (!tied) return {};
  if (node.resolved.make_module) throw tied->error("the parameters are a module's own, and cannot be tied");
  const std::vector<std::string> names = names_of(node.resolved);
  if (names.empty()) throw tied->error("this node has no parameters");
  if (!tied->is_string()) tied->refuse_other_keys(names);
  std::set<std::string> found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (tied->is_string()) {
      ties_.push_back({first + i, fmt::format("{}.{}", tied->string(), names[i]), *tied});
    } else if (const std::optional<JsonValue> its = tied->find(names[i])) {
      ties_.push_back({first + i, its->string(), *its});
    } else {
      continue;
    }
    found.insert(names[i]);
  }
  return found;
}

void ParameterReader::read_initializers(const Options& options, const GraphNode& node, std::size_t first,
                                        const std::set<std::string>& tied) {
  const std::optional<JsonValue> init = options.find("init");
  if (!init) return;
  const std::vector<std::string> names = names_of(node.resolved);
  const std::span<GraphParameter> parameters = std::span(parameters_).subspan(first);
  if (is_by_name(*init)) {
    init->refuse_other_keys(names);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::optional<JsonValue> its = init->find(names[i]);
      if (!its) continue;
      if (tied.contains(names[i])) throw its->error("it is tied, and holds what the other one does");
      parameters[i].initial = read_initializer(*its, parameters[i].shape);
    }
    return;
  }
  (void)initializer_from_json(*init);
  std::size_t weights = 0;
  std::size_t own_weights = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!is_weight(parameters[i].shape)) continue;
    ++weights;
    if (tied.contains(names[i])) continue;
    ++own_weights;
    parameters[i].initial = read_initializer(*init, parameters[i].shape);
  }
  if (weights == 0)
    throw init->error(
        "this node has no weights of two dimensions or more; others are named, as in {\"weight\": \"ones\"}");
  if (own_weights == 0) throw init->error("the weights of this node are tied, and hold what the others do");
}

std::size_t ParameterReader::parameter_at(const Tie& tie) const {
  if (const auto found = by_path_.find(tie.to); found != by_path_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [path, number] : by_path_) known.push_back(path);
  const std::optional<std::string> nearest = nearest_name(tie.to, known);
  throw tie.place.error(fmt::format("there is no parameter '{}'{}", tie.to,
                                    nearest ? fmt::format("; did you mean '{}'?", *nearest) : ""));
}

void ParameterReader::refuse_unless_one(const Tie& tie, std::size_t other) const {
  const GraphParameter& mine = parameters_[tie.parameter];
  const GraphParameter& its = parameters_[other];
  if (origins_[other].is_of_module)
    throw tie.place.error(fmt::format("'{}' is a module's own, and cannot be tied", its.path));
  if (mine.shape != its.shape) {
    throw tie.place.error(fmt::format("'{}' of the shape {} cannot be '{}' of the shape {}", mine.path,
                                      to_string(mine.shape), its.path, to_string(its.shape)));
  }
  if (mine.is_frozen != its.is_frozen || mine.lr_factor != its.lr_factor) {
    throw tie.place.error(fmt::format("'{}' and '{}' are one parameter, and their nodes differ in frozen or lr_factor",
                                      mine.path, its.path));
  }
  const bool is_private = origins_[tie.parameter].is_private;
  if (is_private != origins_[other].is_private) {
    throw tie.place.error(fmt::format("'{}' is private to each replica or client, and '{}' is shared by all",
                                      (is_private ? mine : its).path, (is_private ? its : mine).path));
  }
}

// Those that are tied to another give way to it.
std::vector<GraphParameter> ParameterReader::finish(std::vector<GraphNode>& nodes) {
  std::vector<std::size_t> owner(parameters_.size());
  std::iota(owner.begin(), owner.end(), std::size_t{0});
  const auto owner_of = [&](std::size_t i) {
    while (owner[i] != i) i = owner[i] = owner[owner[i]];
    return i;
  };
  for (const Tie& tie : ties_) {
    const std::size_t other = owner_of(parameter_at(tie));
    if (other == owner_of(tie.parameter))
      throw tie.place.error(fmt::format("'{}' is tied to itself", parameters_[tie.parameter].path));
    refuse_unless_one(tie, other);
    owner[owner_of(tie.parameter)] = other;
  }
  std::vector<bool> is_used(parameters_.size());
  for (const GraphNode& node : nodes) {
    for (const std::size_t parameter : node.parameters) is_used[owner_of(parameter)] = true;
  }
  std::vector<std::size_t> place(parameters_.size());
  std::vector<GraphParameter> kept;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_used[i]) continue;
    place[i] = kept.size();
    kept.push_back(std::move(parameters_[i]));
  }
  for (GraphNode& node : nodes) {
    for (std::size_t& parameter : node.parameters) parameter = place[owner_of(parameter)];
  }
  return kept;
}

}  // namespace tutti
