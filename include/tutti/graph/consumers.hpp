// Who uses the values and the parameters of a graph, in the order in which their gradients add up.
//
//   const Consumers consumers = consumers_of(graph);
//   for (const Consumer& one : consumers.of_value[value]) ...
#pragma once

#include <cstddef>
#include <vector>

#include <tutti/graph/graph.hpp>

namespace tutti {

// A node's input or parameter; or an output of the graph.
struct Consumer {
  std::size_t node = 0;  // as many as there are nodes, where it is an output
  std::size_t position = 0;
  friend bool operator==(const Consumer&, const Consumer&) = default;
};

// Each by the paths of its nodes and their positions, outputs last.
struct Consumers {
  std::vector<std::vector<Consumer>> of_value = {};
  std::vector<std::vector<Consumer>> of_parameter = {};
};

Consumers consumers_of(const Graph& graph);

}  // namespace tutti
