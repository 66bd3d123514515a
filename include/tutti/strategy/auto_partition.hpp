// Which node of a graph goes to which worker, so that the busiest worker has as little to do as can be: a pure function
// of what the nodes cost and of what it costs to move their values.
//
//   const PartitionProblem problem{.workers = 2,
//                                  .costs = {3, 1, 4},                                     // seconds of each node
//                                  .values = {{.of = 0, .to = {1, 2}, .cost = 0.5}, {.of = 1, .to = {2}, .cost =
//                                  0.1}}};
//   const std::vector<int> worker_of = partition_nodes(problem);
//   busiest_worker(problem, worker_of);                                                  // 4.5, in seconds
//
// Small graphs are searched exhaustively. For larger ones the nodes are first cut in the order in which they are
// computed; then they change places, one by one, as long as that helps.
#pragma once

#include <cstddef>
#include <vector>

namespace tutti {

// What a node gives to others. Where they are on other workers, moving it there, and its gradient back, costs both ends
// as much; once for each of these workers.
struct PartitionValue {
  std::size_t of = 0;
  std::vector<std::size_t> to = {};
  double cost = 0;
};

struct PartitionProblem {
  int workers = 1;
  std::vector<double> costs = {};  // by node, in an order in which they can be computed
  std::vector<PartitionValue> values = {};
};

struct PartitionOptions {
  std::size_t exhaustive_up_to = 10;  // nodes
};

// By node. A UsageError where there is less than one worker.
std::vector<int> partition_nodes(const PartitionProblem& problem, const PartitionOptions& options = {});

// The same where the nodes of each worker follow each other, in the order of the costs: fewer values are moved then,
// and none to and fro.
std::vector<int> cut_nodes_in_order(const PartitionProblem& problem);

// What the worker has to do that has the most.
double busiest_worker(const PartitionProblem& problem, const std::vector<int>& worker_of);

}  // namespace tutti
