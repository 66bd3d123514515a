#include <tutti/train/data_parallel_options.hpp>

#include <fmt/format.h>

#include "private_names.hpp"

namespace tutti {
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
  options.is_private = detail::private_names(run.graph);
  return options;
}

}  // namespace tutti
