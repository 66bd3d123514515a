#include <tutti/train/found_partitions.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/strategy/auto_partition.hpp>
#include <tutti/train/pipeline_forecast.hpp>

#include "value_bytes.hpp"

namespace tutti {
namespace {

using detail::bytes_of;
using detail::seconds_to_move;

PartitionProblem problem_of(const Run& run, const strategy::ModelParallel& strategy, const NodeCosts& costs) {
  const Graph& graph = run.graph;
  const std::size_t inputs = graph.inputs().size();
  // Updates and ties come once in a step, not with each micro-batch.
  const double micro_batches = static_cast<double>(run.data.batch_size) / static_cast<double>(costs.rows);
  PartitionProblem problem{.workers = static_cast<int>(strategy.auto_partition.workers)};
  std::map<std::size_t, std::vector<std::size_t>> users_of_value;
  std::map<std::size_t, std::vector<std::size_t>> users_of_parameter;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const GraphNode& node = graph.nodes()[n];
    double update = 0;
    for (const std::size_t parameter : node.parameters) {
      const GraphParameter& its = graph.parameters()[parameter];
      const bool is_first = users_of_parameter[parameter].empty();
      users_of_parameter[parameter].push_back(n);
      if (is_first && !its.is_frozen)
        update += costs.update_of_element * static_cast<double>(element_count(its.shape).value_or(0));
    }
    const double forward = costs.nodes[n].forward * (strategy.recompute ? 2 : 1);
    problem.costs.push_back(forward + costs.nodes[n].backward + update / micro_batches);
    for (const std::size_t value : std::set(node.inputs.begin(), node.inputs.end())) {
      if (value >= inputs) users_of_value[value - inputs].push_back(n);
    }
  }
  const std::vector<bool> has_gradient = values_with_gradient(graph);
  for (const auto& [node, users] : users_of_value) {
    const double bytes = bytes_of(graph.nodes()[node].resolved.output) * static_cast<double>(costs.rows);
    const double seconds = seconds_to_move(bytes) * (has_gradient[inputs + node] ? 2 : 1);
    problem.values.push_back({.of = node, .to = users, .cost = seconds});
  }
  for (auto& [parameter, users] : users_of_parameter) {
    if (users.size() == 1 || graph.parameters()[parameter].is_frozen) continue;
    const double seconds = 2 * seconds_to_move(bytes_of({.shape = graph.parameters()[parameter].shape}));
    const std::size_t first = users.front();
    users.erase(users.begin());
    problem.values.push_back({.of = first, .to = std::move(users), .cost = seconds / micro_batches});
  }
  return problem;
}

strategy::ModelParallel with_workers(const Run& run, strategy::ModelParallel strategy,
                                     const std::vector<int>& worker_of) {
  std::map<int, std::size_t> partition_of;  // by worker: in the order in which the nodes come to them
  for (std::size_t n = 0; n < worker_of.size(); ++n) {
    const auto [place, is_new] = partition_of.try_emplace(worker_of[n], strategy.partitions.size());
    if (is_new)
      strategy.partitions.push_back({.node_ids = {}, .target = strategy::WorkerId{run.workers[place->second].id}});
    strategy.partitions[place->second].node_ids.push_back(run.graph.nodes()[n].path);
  }
  strategy.auto_partition = {};
  return strategy;
}

// Of cuts that are about as balanced, that whose steps take the least: nodes that follow each other are worth
// something.
strategy::ModelParallel find_partitions(const Run& run, const NodeCosts& costs) {
  constexpr double kAboutAsBalanced = 1.08;
  const auto& strategy = std::get<strategy::ModelParallel>(run.graph.effective_strategy());
  const PartitionProblem problem = problem_of(run, strategy, costs);
  const std::vector<int> balanced = partition_nodes(problem);
  const std::vector<int> in_order = cut_nodes_in_order(problem);
  strategy::ModelParallel found = with_workers(run, strategy, balanced);
  if (busiest_worker(problem, in_order) > kAboutAsBalanced * busiest_worker(problem, balanced)) return found;
  strategy::ModelParallel other = with_workers(run, strategy, in_order);
  const auto seconds = [&](const strategy::ModelParallel& one) {
    Run with = run;
    with.graph.set_strategy(one);
    return forecast_pipeline(with, costs).seconds;
  };
  return seconds(other) <= seconds(found) ? other : found;
}

}  // namespace

bool wants_partitions(const Run& run) {
  const auto* cut = std::get_if<strategy::ModelParallel>(&run.graph.effective_strategy());
  return cut != nullptr && cut->auto_partition.workers > 0;
}

Run with_found_partitions(const Run& run, const NodeCosts& costs) {
  const auto wanted = static_cast<std::size_t>(
      std::get<strategy::ModelParallel>(run.graph.effective_strategy()).auto_partition.workers);
  const strategy::ModelParallel strategy = find_partitions(run, costs);
  Run found = run;
  found.graph.set_strategy(strategy);
  if (strategy.partitions.size() < wanted) {
    found.warnings.push_back(fmt::format("the graph is not worth {} workers: {} of them have nothing to do", wanted,
                                         wanted - strategy.partitions.size()));
  }
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const Worker& worker : run.workers) {
    workers.push_back({{"id", worker.id}});
    if (!worker.tags.empty()) workers.back()["tags"] = worker.tags;
  }
  nlohmann::ordered_json resolved;  // with the workers where they stand in a file that lists them
  for (const auto& [key, value] : run.resolved->items()) {
    if (key != "workers") resolved[key] = value;
    if (key == "graph") resolved["workers"] = workers;
  }
  resolved["graph"]["strategy"] = to_json(strategy);
  found.resolved = std::make_shared<const nlohmann::ordered_json>(std::move(resolved));
  return found;
}

}  // namespace tutti
