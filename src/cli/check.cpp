// `tutti check run.json`: reads a run file, and tells what would run: nodes, shapes, parameters, strategies, memory.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/bytes.hpp>
#include <tutti/base/error.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/run.hpp>

#include "cli/command_line.hpp"
#include "cli/graph_picture.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

std::string in_bytes(double bytes) { return to_string(Bytes{static_cast<std::uint64_t>(std::max(bytes, 0.0))}); }

// "200960" becomes "200,960".
std::string in_groups(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t place = text.size(); place > 3;) text.insert(place -= 3, ",");
  return text;
}

// A table whose columns are as wide as what is in them; numbers to the right.
class Table {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const {
    std::vector<std::size_t> widths;
    for (const std::vector<std::string>& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i)
        line += i == kNumbers ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
      line.erase(line.find_last_not_of(' ') + 1);
      fmt::print("{}\n", line);
    }
  }

 private:
  static constexpr std::size_t kNumbers = 3;
  std::vector<std::vector<std::string>> rows_;
};

std::int64_t count_of(const GraphParameter& parameter) { return element_count(parameter.shape).value_or(0); }

std::string parameters_of(const Graph& graph, const GraphNode& node) {
  std::int64_t count = 0;
  std::string note;
  for (const std::size_t index : node.parameters) {
    const GraphParameter& parameter = graph.parameters()[index];
    if (parameter.path.starts_with(node.path + ".")) {
      count += count_of(parameter);
      if (parameter.is_frozen) note = " frozen";
    } else {
      note = " tied";
    }
  }
  return node.parameters.empty() ? "" : in_groups(count) + note;
}

void print_nodes(const Graph& graph) {
  Table table;
  table.add({"node", "op", "output", "parameters", "strategy"});
  for (const GraphInput& input : graph.inputs()) table.add({input.name, "input", to_string(input.spec)});
  for (const GraphNode& node : graph.nodes()) {
    table.add({node.path, node.op, to_string(node.resolved.output), parameters_of(graph, node),
               std::string(name_of(graph.effective_strategy(node.path)))});
  }
  table.print();
}

void print_summary(const Run& run) {
  std::int64_t all = 0;
  std::int64_t frozen = 0;
  for (const GraphParameter& parameter : run.graph.parameters()) {
    all += count_of(parameter);
    if (parameter.is_frozen) frozen += count_of(parameter);
  }
  const Footprint footprint = footprint_of(run);
  fmt::print("\nparameters  {}{}\n", in_groups(all),
             frozen > 0 ? fmt::format(", {} of them frozen", in_groups(frozen)) : "");
  fmt::print("data        {}, {} rows a step\n", run.data.source, run.data.batch_size);
  fmt::print("loss        {}\n", run.loss_name);
  fmt::print("optimizer   {}\n", to_string(run.optimizer));
  fmt::print("strategy    {}\n", to_string(run.graph.effective_strategy()));
  fmt::print("memory      {}: parameters {}, optimizer {}, gradients {}, activations {}\n", in_bytes(footprint.total()),
             in_bytes(footprint.parameters), in_bytes(footprint.optimizer_state), in_bytes(footprint.gradients),
             in_bytes(footprint.activations));
  fmt::print("moved       {} between replicas in a step\n", in_bytes(footprint.moved));
}

}  // namespace

void run_check(Arguments arguments) {
  std::string file;
  std::string picture;
  CommandLine line("Reads a run file, and tells what would run: nodes, shapes, parameters, strategies, memory.",
                   "tutti check");
  line.positional("run", file, "the run file");
  line.option("--dot", picture, "write the graph to this file, for Graphviz");
  if (!line.parse(arguments)) return;
  const Run run = read_run(JsonDocument::read_file(file).root());
  if (!picture.empty()) write_picture(run.graph, picture);
  print_nodes(run.graph);
  print_summary(run);
  for (const std::string& warning : run.graph.warnings()) fmt::print(stderr, "tutti: warning: {}\n", warning);
}

}  // namespace tutti::cli
