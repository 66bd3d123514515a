#include "cli/graph_picture.hpp"

#include <functional>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>

namespace tutti::cli {
namespace {

// Names are letters, digits, _, - and dots: nothing that would have to be escaped.
std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

std::string to_dot(const Graph& graph) {
  std::string text = "digraph {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n";
  const auto name_of_value = [&](std::size_t value) {
    const std::size_t inputs = graph.inputs().size();
    return value < inputs ? "input " + graph.inputs()[value].name : graph.nodes()[value - inputs].path;
  };
  for (const GraphInput& input : graph.inputs())
    text += fmt::format("  \"input {0}\" [label=\"{0}\\n{1}\", shape=ellipse];\n", input.name, to_string(input.spec));
  const std::function<void(std::size_t, const std::string&)> draw = [&](std::size_t subgraph,
                                                                        const std::string& indent) {
    for (const GraphNode& node : graph.nodes()) {
      if (node.subgraph != subgraph) continue;
      text += fmt::format("{}\"{}\" [label=\"{}\\n{} {}\"];\n", indent, node.path, last_part(node.path), node.op,
                          to_string(node.resolved.output));
    }
    for (std::size_t inner = 1; inner < graph.subgraphs().size(); ++inner) {
      const Subgraph& its = graph.subgraphs()[inner];
      if (its.parent != subgraph) continue;
      text += fmt::format("{}subgraph \"cluster {}\" {{\n{}  label=\"{}{}\";\n", indent, its.path, indent,
                          last_part(its.path), its.strategy ? fmt::format("\\n{}", name_of(*its.strategy)) : "");
      draw(inner, indent + "  ");
      text += indent + "}\n";
    }
  };
  draw(0, "  ");
  for (const GraphNode& node : graph.nodes()) {
    for (const std::size_t value : node.inputs)
      text += fmt::format("  \"{}\" -> \"{}\";\n", name_of_value(value), node.path);
  }
  for (const GraphOutput& output : graph.outputs()) {
    text += fmt::format("  \"output {0}\" [label=\"{0}\", shape=ellipse];\n  \"{1}\" -> \"output {0}\";\n", output.name,
                        name_of_value(output.value));
  }
  return text + "}\n";
}

void write_picture(const Graph& graph, const std::string& file) { write_file(file, to_dot(graph)); }

}  // namespace tutti::cli
