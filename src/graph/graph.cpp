#include <tutti/graph/graph.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/nearest_name.hpp>

#include "graph_reader.hpp"

namespace tutti {
namespace {

const TrainingStrategy kLocal = strategy::Local{};

std::string name_of_graph(const Subgraph& subgraph) {
  return subgraph.path.empty() ? "the graph" : fmt::format("the subgraph '{}'", subgraph.path);
}

std::string unknown(std::string_view what, std::string_view path, const std::vector<std::string>& known) {
  const std::optional<std::string> nearest = nearest_name(path, known);
  return fmt::format("there is no {} '{}'{}", what, path, nearest ? fmt::format("; did you mean '{}'?", *nearest) : "");
}

}  // namespace

Graph Graph::from_json(const JsonValue& value, const OperatorRegistry& operators) {
  return GraphReader(operators).read(value);
}

nlohmann::ordered_json Graph::to_json() const { return *document_; }

const ValueSpec& Graph::value(std::size_t index) const {
  return index < inputs_.size() ? inputs_[index].spec : nodes_[index - inputs_.size()].resolved.output;
}

// --- strategies ---

const TrainingStrategy& Graph::effective_strategy_of(std::size_t subgraph) const {
  while (!subgraphs_[subgraph].strategy && subgraph != 0) subgraph = subgraphs_[subgraph].parent;
  return subgraphs_[subgraph].strategy ? *subgraphs_[subgraph].strategy : kLocal;
}

std::size_t Graph::subgraph_of(std::string_view path) const {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < subgraphs_.size(); ++i) {
    if (subgraphs_[i].path == path) return i;
    known.push_back(subgraphs_[i].path);
  }
  for (const auto& [node, subgraph] : places_) {
    if (node == path) return subgraph;
    known.push_back(node);
  }
  throw UsageError(unknown("node", path, known));
}

const TrainingStrategy& Graph::effective_strategy(std::string_view path) const {
  return effective_strategy_of(subgraph_of(path));
}

bool Graph::is_distributed() const {
  return std::ranges::any_of(subgraphs_, [](const Subgraph& subgraph) {
    return subgraph.strategy && tutti::is_distributed(*subgraph.strategy);
  });
}

// With what is around the subgraph, and with what is in it.
void Graph::refuse_inside_each_other(std::size_t subgraph, const TrainingStrategy& strategy) const {
  const auto refuse = [&](std::size_t outer, const TrainingStrategy& its, std::size_t inner,
                          const TrainingStrategy& other) {
    if (const std::optional<std::string> why = why_not_inside(its, other)) {
      throw UsageError(fmt::format("{} has the strategy {} inside {}: {}", name_of_graph(subgraphs_[inner]),
                                   name_of(other), name_of_graph(subgraphs_[outer]), *why));
    }
  };
  const auto outer_of = [&](std::size_t inner) {
    std::size_t outer = subgraphs_[inner].parent;
    while (outer != 0 && outer != subgraph && !subgraphs_[outer].strategy) outer = subgraphs_[outer].parent;
    return outer;
  };
  if (subgraph != 0) refuse(outer_of(subgraph), effective_strategy_of(subgraphs_[subgraph].parent), subgraph, strategy);
  for (std::size_t inner = 1; inner < subgraphs_.size(); ++inner) {
    if (inner != subgraph && subgraphs_[inner].strategy && outer_of(inner) == subgraph)
      refuse(subgraph, strategy, inner, *subgraphs_[inner].strategy);
  }
}

void Graph::refuse_unknown_nodes(const TrainingStrategy& strategy) const {
  const auto* parallel = std::get_if<strategy::ModelParallel>(&strategy);
  if (parallel == nullptr) return;
  for (const strategy::Partition& partition : parallel->partitions) {
    for (const std::string& id : partition.node_ids) (void)subgraph_of(id);
  }
}

void Graph::set_strategy(const TrainingStrategy& strategy, std::string_view subgraph) {
  validate(strategy);
  const auto found = std::ranges::find(subgraphs_, subgraph, &Subgraph::path);
  if (found == subgraphs_.end()) {
    std::vector<std::string> known;
    for (const Subgraph& one : subgraphs_) known.push_back(one.path);
    throw UsageError(unknown("subgraph", subgraph, known));
  }
  refuse_inside_each_other(static_cast<std::size_t>(found - subgraphs_.begin()), strategy);
  refuse_unknown_nodes(strategy);
  nlohmann::ordered_json document = *document_;
  nlohmann::ordered_json* place = &document;
  for (std::size_t begin = 0; begin < subgraph.size();) {
    const std::size_t end = std::min(subgraph.find('.', begin), subgraph.size());
    place = &*std::ranges::find_if((*place)["nodes"], [&](const nlohmann::ordered_json& node) {
      return node["id"] == std::string(subgraph.substr(begin, end - begin));
    });
    begin = end + 1;
  }
  (*place)["strategy"] = tutti::to_json(strategy);
  found->strategy = strategy;
  document_ = std::make_shared<const nlohmann::ordered_json>(std::move(document));
}

Graph Graph::with_strategy(const TrainingStrategy& strategy) const {
  Graph graph = *this;
  graph.set_strategy(strategy);
  return graph;
}

}  // namespace tutti
