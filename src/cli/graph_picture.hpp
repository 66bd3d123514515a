// A graph as Graphviz draws it: boxes for nodes, with their shapes, in frames for subgraphs.
#pragma once

#include <string>

#include <tutti/graph/graph.hpp>

namespace tutti::cli {

std::string to_dot(const Graph& graph);

// An Error where the file cannot be written.
void write_picture(const Graph& graph, const std::string& file);

}  // namespace tutti::cli
