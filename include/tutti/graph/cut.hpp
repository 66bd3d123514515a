// A graph cut into stages, each on a worker: what ModelParallel is carried out with.
//
//   const Cut cut = cut_graph(graph, strategy, workers);
//   for (const CutStage& stage : cut.stages) ...                  // in an order in which they can be computed
//   const StageGraph stages = stage_graph(graph, cut);            // for schedules
//
// Any graph can be cut anywhere. Nodes of one worker that need nothing from others in between form a stage; a worker to
// which values come back has several. A subgraph with the strategy DataParallel is a stage of several replicas, each
// with every so manieth row, dealt out to the workers that its target names.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tutti/graph/graph.hpp>
#include <tutti/strategy/pipeline_schedule.hpp>
#include <tutti/strategy/training_strategy.hpp>

namespace tutti {

struct Worker {
  std::string id;
  std::vector<std::string> tags = {};
  friend bool operator==(const Worker&, const Worker&) = default;
};

struct CutStage {
  int worker = 0;
  std::vector<std::size_t> nodes = {};  // in an order in which they can be computed
  int replica = 0;                      // row i of a batch is replica i mod replicas'
  int replicas = 1;
};

struct Cut {
  std::vector<Worker> workers = {};
  std::vector<CutStage> stages = {};       // replicas of a stage stand behind each other
  std::vector<std::size_t> stage_of = {};  // by node: the first of its replicas
};

// Those that partitions name, in this order: for a run that lists none.
std::vector<Worker> workers_named_in(const strategy::ModelParallel& strategy);

// Nodes that no partition has are the first worker's. A UsageError names a target that nobody fulfils.
Cut cut_graph(const Graph& graph, const strategy::ModelParallel& strategy, const std::vector<Worker>& workers);

// The loss is of the graph's first output.
StageGraph stage_graph(const Graph& graph, const Cut& cut);

// By node: whether the loss depends on it; and by value: whether that depends on a parameter that is trained.
std::vector<bool> nodes_before_loss(const Graph& graph);
std::vector<bool> values_with_gradient(const Graph& graph);

}  // namespace tutti
