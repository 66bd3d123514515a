// A graph made in C++, node by node; the same graph as from a file.
//
//   Graph graph = GraphBuilder()
//                     .input("image", {1, 28, 28})
//                     .node("flat", "flatten", {"image"})
//                     .node("hidden", "linear", {"flat"}, {{"units", 256}})
//                     .node("act", "relu", {"hidden"})
//                     .node("logits", "linear", {"act"}, {{"units", 10}})
//                     .output("logits")
//                     .with_strategy(strategy::DataParallel{.num_replicas = 2})
//                     .build();
//
// Options are those of the file. A subgraph is a builder too. Its inputs go by the names that they have around it, or
// by names of their own:
//
//   .graph("body", {"flat"}, GraphBuilder().node("act", "relu", {"flat"}).output("act"))
//   .graph("body", GraphBuilder().takes("x", "flat").node("act", "relu", {"x"}).output("act"))
//
// What cannot be is refused by build(), which names the place: "graph.logits.units: expected ...".
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

class GraphBuilder {
 public:
  GraphBuilder& input(const std::string& name, const Shape& shape, ValueType type = ValueType::float32);
  GraphBuilder& node(const std::string& id, const std::string& op, const std::vector<std::string>& inputs,
                     const nlohmann::ordered_json& options = nlohmann::ordered_json::object());
  GraphBuilder& graph(const std::string& id, const std::vector<std::string>& inputs, const GraphBuilder& body);
  GraphBuilder& graph(const std::string& id, const GraphBuilder& body);
  // Of a subgraph: what goes by this name in it, by its name around it.
  GraphBuilder& takes(const std::string& name, const std::string& value);
  GraphBuilder& output(const std::string& name);
  GraphBuilder& with_strategy(const TrainingStrategy& strategy);

  Graph build(const OperatorRegistry& operators = OperatorRegistry()) const;

 private:
  void refuse_unless_new_input(const std::string& name) const;
  GraphBuilder& add_graph(nlohmann::ordered_json node, const GraphBuilder& body);

  nlohmann::ordered_json document_ = nlohmann::ordered_json::object();
};

}  // namespace tutti
