// Parameters and buffers of nodes that each replica or client has to itself, which are named by the paths of these.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/graph/graph.hpp>

namespace tutti::detail {

// Empty where there are none.
inline std::function<bool(const std::string&)> private_names(const Graph& graph) {
  std::vector<std::string> prefixes;
  for (const GraphNode& node : graph.nodes()) {
    if (graph.is_private(node)) prefixes.push_back(node.path + ".");
  }
  if (prefixes.empty()) return {};
  return [prefixes = std::move(prefixes)](const std::string& name) {
    return std::ranges::any_of(prefixes, [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
}

}  // namespace tutti::detail
