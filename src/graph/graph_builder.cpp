#include <tutti/graph/graph_builder.hpp>

namespace tutti {

void GraphBuilder::refuse_unless_new_input(const std::string& name) const {
  if (document_.contains("inputs") && document_["inputs"].contains(name))
    throw UsageError("there is an input '" + name + "' already");
}

GraphBuilder& GraphBuilder::input(const std::string& name, const Shape& shape, ValueType type) {
  refuse_unless_new_input(name);
  document_["inputs"][name] = type == ValueType::float32
                                  ? nlohmann::ordered_json(shape)
                                  : nlohmann::ordered_json{{"shape", shape}, {"type", to_string(type)}};
  return *this;
}

GraphBuilder& GraphBuilder::node(const std::string& id, const std::string& op, const std::vector<std::string>& inputs,
                                 const nlohmann::ordered_json& options) {
  nlohmann::ordered_json node{{"id", id}, {"op", op}, {"inputs", inputs}};
  if (!options.is_object()) throw UsageError("the options of the node '" + id + "' are no object: " + options.dump());
  for (const auto& [key, value] : options.items()) {
    if (node.contains(key)) throw UsageError("the options of the node '" + id + "' have '" + key + "' once more");
  }
  node.update(options);
  document_["nodes"].push_back(std::move(node));
  return *this;
}

GraphBuilder& GraphBuilder::graph(const std::string& id, const std::vector<std::string>& inputs,
                                  const GraphBuilder& body) {
  if (body.document_.contains("inputs"))
    throw UsageError("the graph '" + id + "' has its inputs from the graph around it; it declares none");
  return add_graph({{"id", id}, {"op", "graph"}, {"inputs", inputs}}, body);
}

GraphBuilder& GraphBuilder::graph(const std::string& id, const GraphBuilder& body) {
  if (!body.document_.contains("inputs"))
    throw UsageError("the graph '" + id + "' takes nothing: name its inputs with takes()");
  for (const auto& [name, value] : body.document_["inputs"].items()) {
    if (!value.is_string())
      throw UsageError("the graph '" + id + "' has its inputs from the graph around it; it declares none");
  }
  return add_graph({{"id", id}, {"op", "graph"}}, body);
}

GraphBuilder& GraphBuilder::add_graph(nlohmann::ordered_json node, const GraphBuilder& body) {
  node.update(body.document_);
  if (!node.contains("nodes")) node["nodes"] = nlohmann::ordered_json::array();
  document_["nodes"].push_back(std::move(node));
  return *this;
}

GraphBuilder& GraphBuilder::takes(const std::string& name, const std::string& value) {
  refuse_unless_new_input(name);
  document_["inputs"][name] = value;
  return *this;
}

GraphBuilder& GraphBuilder::output(const std::string& name) {
  document_["outputs"].push_back(name);
  return *this;
}

GraphBuilder& GraphBuilder::with_strategy(const TrainingStrategy& strategy) {
  document_["strategy"] = to_json(strategy);
  return *this;
}

Graph GraphBuilder::build(const OperatorRegistry& operators) const {
  nlohmann::ordered_json document{{"graph", document_}};
  if (!document_.contains("nodes")) document["graph"]["nodes"] = nlohmann::ordered_json::array();
  std::string text;
  try {
    text = document.dump();
  } catch (const nlohmann::ordered_json::type_error&) {
    throw UsageError("a name or an option of the graph is not UTF-8");
  }
  return Graph::from_json(JsonDocument::parse(text, "graph").root().at("graph"), operators);
}

}  // namespace tutti
