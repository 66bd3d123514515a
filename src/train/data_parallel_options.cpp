#include <tutti/train/data_parallel_options.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tutti {
namespace {

// Parameters and buffers of nodes that each replica has to itself, which are named by the paths of these.
std::function<bool(const std::string&)> private_names(const Graph& graph) {
  std::vector<std::string> prefixes;
  for (const GraphNode& node : graph.nodes()) {
    if (graph.is_private(node)) prefixes.push_back(node.path + ".");
  }
  if (prefixes.empty()) return {};
  return [prefixes = std::move(prefixes)](const std::string& name) {
    return std::ranges::any_of(prefixes, [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
}

}  // namespace

DataParallelOptions data_parallel_options(const Run& run) {
  DataParallelOptions options{.replicas = 1,
                              .clip_norm = run.train.clip_norm,
                              .accumulate = static_cast<int>(run.train.accumulate),
                              .seed = run.seed,
                              .deadline = run.train.deadline};
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  if (std::holds_alternative<strategy::Local>(strategy)) return options;
  const auto* parallel = std::get_if<strategy::DataParallel>(&strategy);
  const auto* method = parallel == nullptr ? nullptr : std::get_if<strategy::AllReduce>(&parallel->aggregation);
  if (method == nullptr)
    throw UsageError(fmt::format("nothing carries this strategy out yet: {}", to_string(strategy)));
  options.replicas = static_cast<int>(parallel->num_replicas);
  options.algorithm = method->algorithm;
  options.compression = method->compression;
  options.logical_shards = method->logical_shards;
  options.is_private = private_names(run.graph);
  return options;
}

}  // namespace tutti
