#include <tutti/graph/cut.hpp>

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

bool is_in(std::string_view path, std::string_view id) {
  return path == id || (path.starts_with(id) && path.size() > id.size() && path[id.size()] == '.');
}

std::vector<int> who_fulfils(const strategy::RemoteTarget& target, const std::vector<Worker>& workers) {
  std::vector<int> found;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    const auto* id = std::get_if<strategy::WorkerId>(&target);
    const bool is_one = id != nullptr ? workers[w].id == id->id
                                      : std::ranges::find(workers[w].tags, std::get<strategy::Tag>(target).tag) !=
                                            workers[w].tags.end();
    if (is_one) found.push_back(static_cast<int>(w));
  }
  return found;
}

// Where a node is computed.
struct Place {
  std::vector<int> workers = {};  // of each replica
  std::size_t subgraph = 0;       // that is replicated; 0 where none is
  friend auto operator<=>(const Place&, const Place&) = default;
};

class Placing {
 public:
  Placing(const Graph& graph, const strategy::ModelParallel& strategy, const std::vector<Worker>& workers)
      : graph_(graph), strategy_(strategy) {
    std::vector<int> partitions(workers.size());  // of each worker, for tags that several have
    for (std::size_t p = 0; p < strategy.partitions.size(); ++p) {
      std::vector<int> able = who_fulfils(strategy.partitions[p].target, workers);
      if (able.empty()) {
        throw UsageError(std::visit(
            [&]<typename Target>(const Target& target) {
              if constexpr (std::is_same_v<Target, strategy::WorkerId>)
                return fmt::format("partitions[{}].target: there is no worker '{}'", p, target.id);
              else
                return fmt::format("partitions[{}].target: no worker has the tag '{}'", p, target.tag);
            },
            strategy.partitions[p].target));
      }
      // Beginning with the one that has the fewest.
      std::ranges::stable_sort(able, {}, [&](int worker) { return partitions[static_cast<std::size_t>(worker)]; });
      ++partitions[static_cast<std::size_t>(able.front())];
      able_.push_back(std::move(able));
    }
  }

  Place of(const GraphNode& node) const {
    const std::vector<int>* able = &first_;
    for (std::size_t p = 0; p < strategy_.partitions.size(); ++p) {
      for (const std::string& id : strategy_.partitions[p].node_ids) {
        if (is_in(node.path, id)) able = &able_[p];
      }
    }
    const auto* parallel = std::get_if<strategy::DataParallel>(&graph_.effective_strategy(node.path));
    if (parallel == nullptr) return {.workers = {able->front()}};
    Place place;
    for (std::int64_t r = 0; r < parallel->num_replicas; ++r)
      place.workers.push_back((*able)[static_cast<std::size_t>(r) % able->size()]);
    for (place.subgraph = node.subgraph; !graph_.subgraphs()[place.subgraph].strategy;)
      place.subgraph = graph_.subgraphs()[place.subgraph].parent;
    return place;
  }

 private:
  const Graph& graph_;
  const strategy::ModelParallel& strategy_;
  std::vector<int> first_{0};
  std::vector<std::vector<int>> able_;  // by partition
};

}  // namespace

std::vector<Worker> workers_named_in(const strategy::ModelParallel& strategy) {
  std::vector<Worker> workers;
  for (const strategy::Partition& partition : strategy.partitions) {
    const auto* tag = std::get_if<strategy::Tag>(&partition.target);
    const std::string& id = tag != nullptr ? tag->tag : std::get<strategy::WorkerId>(partition.target).id;
    if (std::ranges::find(workers, id, &Worker::id) == workers.end()) workers.push_back({.id = id});
    std::vector<std::string>& tags = std::ranges::find(workers, id, &Worker::id)->tags;
    if (tag != nullptr && tags.empty()) tags.push_back(id);
  }
  return workers;
}

Cut cut_graph(const Graph& graph, const strategy::ModelParallel& strategy, const std::vector<Worker>& workers) {
  if (workers.empty()) throw UsageError("expected at least one worker, found none");
  const Placing placing(graph, strategy, workers);
  const std::vector<GraphNode>& nodes = graph.nodes();
  const std::size_t inputs = graph.inputs().size();
  // How many times a value has changed its place on its longest way to a node. Nodes of one place and level form a
  // stage: whatever one of them needs of other places has a lower level.
  std::vector<Place> places;
  std::vector<std::size_t> levels;
  std::map<std::tuple<std::size_t, std::size_t>, std::vector<std::size_t>> stages;  // by level and first node
  std::map<std::pair<Place, std::size_t>, std::size_t> first_node;                  // of a place and level
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    places.push_back(placing.of(nodes[n]));
    std::size_t level = 0;
    for (const std::size_t value : nodes[n].inputs) {
      if (value < inputs) continue;
      const std::size_t before = value - inputs;
      level = std::max(level, levels[before] + (places[before] == places[n] ? 0 : 1));
    }
    levels.push_back(level);
    const std::size_t first = first_node.try_emplace({places[n], level}, n).first->second;
    stages[{level, first}].push_back(n);
  }
  Cut cut{.workers = workers, .stage_of = std::vector<std::size_t>(nodes.size())};
  for (const auto& [key, members] : stages) {
    const Place& place = places[members.front()];
    for (const std::size_t node : members) cut.stage_of[node] = cut.stages.size();
    for (std::size_t r = 0; r < place.workers.size(); ++r) {
      cut.stages.push_back({.worker = place.workers[r],
                            .nodes = members,
                            .replica = static_cast<int>(r),
                            .replicas = static_cast<int>(place.workers.size())});
    }
  }
  return cut;
}

std::vector<bool> nodes_before_loss(const Graph& graph) {
  const std::size_t inputs = graph.inputs().size();
  std::vector<bool> is_before(graph.nodes().size());
  const std::size_t loss = graph.outputs().front().value;
  if (loss >= inputs) is_before[loss - inputs] = true;
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    if (!is_before[n]) continue;
    for (const std::size_t value : graph.nodes()[n].inputs) {
      if (value >= inputs) is_before[value - inputs] = true;
    }
  }
  return is_before;
}

std::vector<bool> values_with_gradient(const Graph& graph) {
  std::vector<bool> has_gradient(graph.inputs().size());
  for (const GraphNode& node : graph.nodes()) {
    const bool has_trained = std::ranges::any_of(
        node.parameters, [&](std::size_t parameter) { return !graph.parameters()[parameter].is_frozen; });
    const bool is_after = std::ranges::any_of(node.inputs, [&](std::size_t value) { return has_gradient[value]; });
    has_gradient.push_back(node.resolved.output.type == ValueType::float32 && (has_trained || is_after));
  }
  return has_gradient;
}

StageGraph stage_graph(const Graph& graph, const Cut& cut) {
  const std::size_t inputs = graph.inputs().size();
  const std::vector<bool> is_before_loss = nodes_before_loss(graph);
  const std::vector<bool> has_gradient = values_with_gradient(graph);
  StageGraph stages{.workers = static_cast<int>(cut.workers.size())};
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    const CutStage& stage = cut.stages[s];
    Stage one{.worker = stage.worker, .has_backward = false};
    for (const std::size_t node : stage.nodes) {
      one.has_backward = one.has_backward || (is_before_loss[node] && has_gradient[inputs + node]);
      for (const std::size_t value : graph.nodes()[node].inputs) {
        if (value < inputs) continue;
        const std::size_t first = cut.stage_of[value - inputs];
        const int replicas = cut.stages[first].replicas;
        for (int r = 0; r < replicas; ++r) {
          const std::size_t before = first + static_cast<std::size_t>(r);
          const bool has_same_rows = replicas != stage.replicas || r == stage.replica;
          if (cut.stages[before].nodes != stage.nodes && has_same_rows) one.after.push_back(before);
        }
      }
    }
    std::ranges::sort(one.after);
    one.after.erase(std::unique(one.after.begin(), one.after.end()), one.after.end());
    stages.stages.push_back(std::move(one));
  }
  return stages;
}

}  // namespace tutti
