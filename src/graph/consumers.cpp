#include <tutti/graph/consumers.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace tutti {

Consumers consumers_of(const Graph& graph) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  Consumers all{.of_value = std::vector<std::vector<Consumer>>(graph.inputs().size() + nodes.size()),
                .of_parameter = std::vector<std::vector<Consumer>>(graph.parameters().size())};
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (std::size_t i = 0; i < nodes[n].inputs.size(); ++i) all.of_value[nodes[n].inputs[i]].push_back({n, i});
    for (std::size_t i = 0; i < nodes[n].parameters.size(); ++i)
      all.of_parameter[nodes[n].parameters[i]].push_back({n, i});
  }
  for (std::size_t i = 0; i < graph.outputs().size(); ++i)
    all.of_value[graph.outputs()[i].value].push_back({nodes.size(), i});
  const auto key = [&](const Consumer& one) {
    constexpr std::string_view kBehindPaths = "~";
    return std::pair(one.node < nodes.size() ? std::string_view(nodes[one.node].path) : kBehindPaths, one.position);
  };
  for (auto* lists : {&all.of_value, &all.of_parameter}) {
    for (std::vector<Consumer>& consumers : *lists) std::ranges::sort(consumers, {}, key);
  }
  return all;
}

}  // namespace tutti
