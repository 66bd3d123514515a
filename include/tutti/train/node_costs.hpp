// How long the nodes of a run's graph take, measured: to find a cut that is balanced, and to foretell what one takes.
//
//   const NodeCosts costs = measure_node_costs(run, *open_data(run).train);
//   costs.nodes[3].backward;                                         // seconds, for the rows of a micro-batch
#pragma once

#include <cstdint>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

// In seconds, on one thread.
struct NodeCost {
  double forward = 0;
  double backward = 0;
};

struct NodeCosts {
  std::int64_t rows = 0;             // these are for so many: a micro-batch, or the batch
  std::vector<NodeCost> nodes = {};  // by node; the loss is in that of the first output
  double update_of_element = 0;      // of a parameter, once in a step
};

// On the first rows of the data, by a model of its own; a median of some passes.
NodeCosts measure_node_costs(const Run& run, const Dataset& data);

}  // namespace tutti
