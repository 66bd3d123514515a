// Parameters that a run changes: those that are not frozen, and that the loss depends on.
//
//   const std::set<std::string> names = trained_names(run.graph);        // "body.conv1.weight"
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include <tutti/graph/cut.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti::detail {

// By number.
inline std::vector<bool> trained_parameters_of(const Graph& graph) {
  const std::vector<bool> is_before_loss = nodes_before_loss(graph);
  std::vector<bool> is_trained(graph.parameters().size());
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    if (!is_before_loss[n]) continue;
    for (const std::size_t parameter : graph.nodes()[n].parameters)
      is_trained[parameter] = !graph.parameters()[parameter].is_frozen;
  }
  return is_trained;
}

inline std::set<std::string> trained_names(const Graph& graph) {
  const std::vector<bool> is_trained = trained_parameters_of(graph);
  std::set<std::string> names;
  for (std::size_t i = 0; i < is_trained.size(); ++i) {
    if (is_trained[i]) names.insert(graph.parameters()[i].path);
  }
  return names;
}

}  // namespace tutti::detail
