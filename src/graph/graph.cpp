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
  if (const auto found = places_.find(path); found != places_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [place, subgraph] : places_) known.push_back(place);
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

// A node is in one partition, by itself or with the subgraph that it is in.
std::optional<Graph::PartitionFault> Graph::find_fault(const strategy::ModelParallel& strategy) const {
  std::map<std::string, std::size_t, std::less<>> partition_of;
  const auto claimed_by = [&](std::string_view path) {
    return fmt::format("'{}', which partitions[{}] has", path, partition_of.find(path)->second);
  };
  for (std::size_t p = 0; p < strategy.partitions.size(); ++p) {
    const std::vector<std::string>& ids = strategy.partitions[p].node_ids;
    for (std::size_t n = 0; n < ids.size(); ++n) {
      const std::string& id = ids[n];
      try {
        (void)subgraph_of(id);
      } catch (const UsageError& error) {
        return PartitionFault{p, n, error.what()};
      }
      for (std::size_t dot = id.find('.'); dot != std::string::npos; dot = id.find('.', dot + 1)) {
        const std::string_view around = std::string_view(id).substr(0, dot);
        if (partition_of.contains(around))
          return PartitionFault{p, n, fmt::format("the node '{}' is in {}", id, claimed_by(around))};
      }
      const auto within = partition_of.lower_bound(id + ".");
      if (within != partition_of.end() && within->first.starts_with(id + "."))
        return PartitionFault{p, n, fmt::format("the subgraph '{}' holds {}", id, claimed_by(within->first))};
      partition_of.emplace(id, p);
    }
  }
  return std::nullopt;
}

bool Graph::is_private(const GraphNode& node) const {
  return is_distributed() && !tutti::is_distributed(effective_strategy_of(node.subgraph));
}

void Graph::refuse_ties_of_private_parameters() const {
  std::vector<const GraphNode*> first_user(parameters_.size());
  for (const GraphNode& node : nodes_) {
    for (const std::size_t parameter : node.parameters) {
      const GraphNode*& first = first_user[parameter];
      if (first == nullptr) first = &node;
      if (is_private(*first) == is_private(node)) continue;
      throw UsageError(
          fmt::format("'{}' is one parameter of the nodes '{}' and '{}', and would be private to each "
                      "replica or client in only one of them",
                      parameters_[parameter].path, first->path, node.path));
    }
  }
}

void Graph::set_strategy(const TrainingStrategy& strategy, std::string_view subgraph) {
  validate(strategy);
  const auto place = std::ranges::find(subgraphs_, subgraph, &Subgraph::path);
  if (place == subgraphs_.end()) {
    std::vector<std::string> known;
    for (const Subgraph& one : subgraphs_) known.push_back(one.path);
    throw UsageError(unknown("subgraph", subgraph, known));
  }
  const auto number = static_cast<std::size_t>(place - subgraphs_.begin());
  refuse_inside_each_other(number, strategy);
  if (const auto* parallel = std::get_if<strategy::ModelParallel>(&strategy)) {
    if (const std::optional<PartitionFault> fault = find_fault(*parallel))
      throw UsageError(
          fmt::format("ModelParallel: partitions[{}].node_ids[{}]: {}", fault->partition, fault->node, fault->what));
  }
  Graph changed = *this;
  changed.subgraphs_[number].strategy = strategy;
  changed.refuse_ties_of_private_parameters();
  nlohmann::ordered_json document = *document_;
  nlohmann::ordered_json* object = &document;
  for (std::size_t begin = 0; begin < subgraph.size();) {
    const std::size_t end = std::min(subgraph.find('.', begin), subgraph.size());
    object = &*std::ranges::find_if((*object)["nodes"], [&](const nlohmann::ordered_json& node) {
      return node["id"] == std::string(subgraph.substr(begin, end - begin));
    });
    begin = end + 1;
  }
  (*object)["strategy"] = tutti::to_json(strategy);
  changed.document_ = std::make_shared<const nlohmann::ordered_json>(std::move(document));
  *this = std::move(changed);
}

Graph Graph::with_strategy(const TrainingStrategy& strategy) const {
  Graph graph = *this;
  graph.set_strategy(strategy);
  return graph;
}

}  // namespace tutti
