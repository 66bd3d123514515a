// From JSON to a graph: names become values, nodes get into an order, operators are asked for shapes. Every refusal is
// a UsageError at its place.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/graph/graph.hpp>

namespace tutti {

class GraphReader {
 public:
  explicit GraphReader(const OperatorRegistry& operators) : operators_(operators) {}

  Graph read(const JsonValue& value);

 private:
  struct DocumentGraph;

  // A name where a value is wanted.
  struct Reference {
    std::string name;
    JsonValue place;
  };
  // A node as the document has it.
  struct DocumentNode {
    std::string id;
    std::string path;
    JsonValue json;
    std::string op = {};
    std::vector<Reference> inputs = {};
    std::unique_ptr<DocumentGraph> body = nullptr;  // of a subgraph
    std::size_t number = 0;                         // among all that compute, in the order of the document
    const DocumentGraph* within = nullptr;
  };
  struct DocumentGraph {
    std::string path;
    std::size_t number = 0;  // among the subgraphs
    const DocumentGraph* around = nullptr;
    std::map<std::string, Reference, std::less<>> inputs;  // of a subgraph: the value around it that a name stands for
    std::vector<std::unique_ptr<DocumentNode>> nodes;
    std::map<std::string, DocumentNode*, std::less<>> by_id;
    std::vector<Reference> outputs;
  };
  // An input of the graph, or what a node computes.
  using Source = std::variant<std::size_t, const DocumentNode*>;

  bool is_input(const DocumentGraph& graph, const std::string& name) const;
  void read_inputs(const JsonValue& value);
  void read_body(const JsonValue& value, DocumentGraph& graph);
  void read_node(const JsonValue& value, DocumentGraph& graph);
  void read_subgraph(const JsonValue& value, DocumentNode& node);
  void read_strategy(const JsonValue& value, std::size_t subgraph);

  Source find(const DocumentGraph& graph, const Reference& reference);
  std::vector<std::string> names_in(const DocumentGraph& graph) const;

  void find_sources();
  void order_nodes();
  Operator resolve(const DocumentNode& node, const Options& options, std::span<const ValueSpec> inputs);
  void resolve_nodes();
  void check_partitions(const JsonValue& strategy) const;

  const OperatorRegistry& operators_;
  Graph graph_;
  std::unique_ptr<DocumentGraph> root_;
  std::vector<DocumentNode*> all_;            // that compute, in the order of the document
  std::vector<std::vector<Source>> sources_;  // by number of the node
  std::vector<Source> output_sources_;
  std::vector<const DocumentNode*> order_;  // to compute them in
  std::vector<bool> is_needed_;             // by number of the node
  using Named = std::pair<const DocumentGraph*, std::string>;
  std::map<Named, Source> found_;  // references that were looked up
  std::set<Named> on_the_way_;     // and those that are being looked up
};

}  // namespace tutti
