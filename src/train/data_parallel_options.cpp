#include <tutti/train/data_parallel_options.hpp>

#include <fmt/format.h>

#include "private_names.hpp"

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
    throw UsageError(fmt::format("nothing carries this strategy out yet: {}", to_string(strategy)));
  DataParallelOptions options = data_parallel_options(run, *parallel);
  options.is_private = detail::private_names(run.graph);
  return options;
}

DataParallelOptions data_parallel_options(const Run& run, const strategy::DataParallel& parallel) {
  const auto* method = std::get_if<strategy::AllReduce>(&parallel.aggregation);
  if (method == nullptr)
    throw UsageError(fmt::format("nothing carries this strategy out yet: {}", to_string(TrainingStrategy(parallel))));
  DataParallelOptions options = options_of_one(run);
  options.replicas = static_cast<int>(parallel.num_replicas);
  options.algorithm = method->algorithm;
  options.compression = method->compression;
  options.logical_shards = method->logical_shards;
  return options;
}

}  // namespace tutti
