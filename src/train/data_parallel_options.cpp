#include <tutti/train/data_parallel_options.hpp>

#include <set>
#include <string>

#include <fmt/format.h>

#include "private_names.hpp"
#include "replica_mixer.hpp"

namespace tutti {
namespace {

DataParallelOptions options_of_one(const Run& run) {
  DataParallelOptions options{.replicas = 1,
                              .clip_norm = run.train.clip_norm,
                              .accumulate = static_cast<int>(run.train.accumulate),
                              .seed = run.seed,
                              .deadline = run.train.deadline};
  return options;
}

}  // namespace

DataParallelOptions data_parallel_options(const Run& run) {
  const TrainingStrategy& strategy = run.graph.effective_strategy();
  if (std::holds_alternative<strategy::Local>(strategy)) return options_of_one(run);
  const auto* parallel = std::get_if<strategy::DataParallel>(&strategy);
  if (parallel == nullptr)
    throw UsageError(fmt::format("expected Local or DataParallel, found {}", to_string(strategy)));
  DataParallelOptions options = data_parallel_options(run, *parallel);
  options.is_private = detail::private_names(run.graph);
  return options;
}

DataParallelOptions data_parallel_options(const Run& run, const strategy::DataParallel& parallel) {
  const auto* all_reduce = std::get_if<strategy::AllReduce>(&parallel.aggregation);
  const auto* server = std::get_if<strategy::ParameterServer>(&parallel.aggregation);
  const bool is_synchronous = server != nullptr && server->consistency == strategy::Consistency::synchronous;
  if ((all_reduce == nullptr && !is_synchronous) || parallel.sync_every > 1)
    throw UsageError(
        fmt::format("replicas here average their gradients in each step; expected AllReduce or a synchronous "
                    "ParameterServer, and a sync_every of 1, found {}",
                    to_string(TrainingStrategy(parallel))));
  DataParallelOptions options = options_of_one(run);
  options.replicas = static_cast<int>(parallel.num_replicas);
  if (is_synchronous) {
    options.algorithm = Centralized{};  // one has everybody's gradients, and all get what it makes of them
    return options;
  }
  options.algorithm = all_reduce->algorithm;
  options.compression = all_reduce->compression;
  options.logical_shards = all_reduce->logical_shards;
  return options;
}

namespace detail {

DataParallelOptions replica_options(const Run& run, const GraphModule& net) {
  if (!has_replica_mixer(run)) return data_parallel_options(run);
  DataParallelOptions options = options_of_one(run);
  options.replicas = static_cast<int>(std::get<strategy::DataParallel>(run.graph.effective_strategy()).num_replicas);
  options.steps_alone = takes_steps_alone(run);
  // All parameters, and of the buffers those that would be private anyway.
  std::set<std::string> shared;
  for (const auto& item : net.named_buffers()) shared.insert(item.key());
  options.is_private = [shared, is_private = private_names(run.graph)](const std::string& name) {
    return !shared.contains(name) || (is_private && is_private(name));
  };
  return options;
}

}  // namespace detail

}  // namespace tutti
