// A network as a graph: nodes that each compute one value from others, subgraphs that are nodes themselves, and the
// strategy it is trained with.
//
//   Graph graph = Graph::from_json(document.root().at("graph"));
//   for (const GraphNode& node : graph.nodes()) fmt::print("{} {}\n", node.path, to_string(node.resolved.output));
//   graph.set_strategy(strategy::DataParallel{.num_replicas = 2});
//   graph.effective_strategy("body.conv1");      // its own graph's, or that of the nearest one around it
//
// In JSON (docs/graph.md has all of it):
//
//   {"inputs": {"image": [1, 28, 28]},
//    "nodes": [{"id": "flat", "op": "flatten", "inputs": ["image"]},
//              {"id": "body", "op": "graph", "inputs": ["flat"], "nodes": [...], "outputs": ["act"]},
//              {"id": "logits", "op": "linear", "inputs": ["body"], "units": 10}],
//    "outputs": ["logits"],
//    "strategy": {"type": "Local"}}
//
// A graph is a value: checked when it is made, without computing anything but operators that do not know their shapes.
// GraphModule computes it (graph/graph_module.hpp); GraphBuilder makes one in C++ (graph/graph_builder.hpp). Every
// failure here is a UsageError that names the place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/base/shape.hpp>
#include <tutti/graph/operator.hpp>
#include <tutti/strategy/training_strategy.hpp>

namespace tutti {

struct GraphInput {
  std::string name;
  ValueSpec spec;
};

// Values are numbered: first the inputs of the graph, then what its nodes compute.
struct GraphOutput {
  std::string name;  // as the document has it
  std::size_t value = 0;
};

// A parameter of a node. Nodes that are tied name the same one.
struct GraphParameter {
  std::string path;  // "body.conv1.weight": of the node that the others are tied to
  Shape shape;
  std::optional<Initializer> initial;  // nothing where a module has its own
  bool is_frozen = false;
  double lr_factor = 1;
};

// A node that computes something; subgraphs are taken apart.
struct GraphNode {
  std::string path;  // "body.conv1"
  std::string op;
  std::vector<std::size_t> inputs = {};      // values
  Operator resolved = {};                    // with its options and inputs
  std::vector<std::size_t> parameters = {};  // which of the graph's
  std::size_t subgraph = 0;                  // which of the graph's; the first is the graph itself
};

// The graph itself, or a node with the operator "graph".
struct Subgraph {
  std::string path;  // empty for the graph itself
  std::size_t parent = 0;
  std::optional<TrainingStrategy> strategy = {};  // its own
};

class Graph {
 public:
  static Graph from_json(const JsonValue& value, const OperatorRegistry& operators = OperatorRegistry());
  nlohmann::ordered_json to_json() const;

  const std::vector<GraphInput>& inputs() const { return inputs_; }
  // In an order in which they can be computed: that of the document as far as it allows. Nodes that no output needs are
  // left out.
  const std::vector<GraphNode>& nodes() const { return nodes_; }
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  const std::vector<GraphParameter>& parameters() const { return parameters_; }
  const std::vector<Subgraph>& subgraphs() const { return subgraphs_; }
  // What each value is; as many as inputs and nodes.
  const ValueSpec& value(std::size_t index) const;

  // Sentences about what was probably not meant, such as a node that nothing uses.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Of the graph itself, or of one of its subgraphs. What cannot be inside each other is refused.
  void set_strategy(const TrainingStrategy& strategy, std::string_view subgraph = {});
  Graph with_strategy(const TrainingStrategy& strategy) const;
  // Of a node or subgraph; Local where there is none all the way up.
  const TrainingStrategy& effective_strategy(std::string_view path = {}) const;
  // Is the graph, or any part of it?
  bool is_distributed() const;
  // Does each replica, or client, have the node's parameters to itself? So it is where a strategy is Local within one
  // that is distributed.
  bool is_private(const GraphNode& node) const;

 private:
  friend class GraphReader;
  Graph() = default;

  // A node of a partition that cannot be in it.
  struct PartitionFault {
    std::size_t partition = 0;
    std::size_t node = 0;
    std::string what;
  };

  const TrainingStrategy& effective_strategy_of(std::size_t subgraph) const;
  // Of a node or subgraph: the subgraph that it is or that it belongs to.
  std::size_t subgraph_of(std::string_view path) const;
  void refuse_inside_each_other(std::size_t subgraph, const TrainingStrategy& strategy) const;
  void refuse_ties_of_private_parameters() const;
  std::optional<PartitionFault> find_fault(const strategy::ModelParallel& strategy) const;

  std::vector<GraphInput> inputs_;
  std::vector<GraphNode> nodes_;
  std::vector<GraphOutput> outputs_;
  std::vector<GraphParameter> parameters_;
  std::vector<Subgraph> subgraphs_;
  // By path, all nodes, unused ones too, and subgraphs: the subgraph that they belong to or are.
  std::map<std::string, std::size_t, std::less<>> places_;
  std::vector<std::string> warnings_;
  std::shared_ptr<const nlohmann::ordered_json> document_;
};

}  // namespace tutti
