// The sums of processes that train together, brought together: each process has added up the gradients of its own
// replicas, and all get the sum over all of them.
//
//   ProcessExchange exchange(world, parameters, is_shared, options);
//   exchange.agree(losses, is_used);                  // in: of this process's shards, others' are 0; out: of all
//   ... fills exchange.sum_of(parameter), or gives gradients by logical shards ...
//   exchange.add_up(weight_of_all);
//
// The algorithm or compression is carried out here, between processes. All calls are the caller's, on all ranks alike;
// what fails here has broken the world, or fails the same on all.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <torch/types.h>
#include <tutti/collective/communicator.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>
#include <tutti/strategy/compression.hpp>
#include <tutti/sync/gradient_compressor.hpp>

#include "gradient_buckets.hpp"
#include "module_parameters.hpp"
#include "shard_gradients.hpp"

namespace tutti::detail {

struct ProcessExchangeOptions {
  AllReduceStrategy algorithm = Auto{};
  Compression compression = NoCompression{};
  std::uint64_t seed = 0;
};

class ProcessExchange {
 public:
  // Of the parameters that `is_shared` says.
  ProcessExchange(Communicator& world, const std::vector<ModuleParameter>& parameters, std::vector<bool> is_shared,
                  const ProcessExchangeOptions& options);

  // Losses by shard, of all processes; and which parameters any of them has used.
  void agree(std::vector<ShardLoss>& losses, std::vector<bool>& is_used);

  // Where this process puts its sum of a shared parameter, and where the sum over all is then.
  const torch::Tensor& sum_of(std::size_t parameter) const { return buckets_.place_of(parameter).view; }
  // Of what lies there, in all buckets. A compression wants the weight of all shards together.
  void add_up(double weight);
  // The same for logical shards, of which this process has chunk `rank` of the world: the tree over all shards.
  void add_up(int shards, const ShardGradients& mine);

  // At the end of a step: what a compression left out counts from now on, but for parameters that were not used; or
  // nothing does.
  void keep(const std::vector<bool>& is_used);
  void forget();

  std::optional<GradientCompressor>& compressor() { return compressor_; }
  const std::optional<GradientCompressor>& compressor() const { return compressor_; }

 private:
  Communicator* world_;
  ProcessExchangeOptions options_;
  std::vector<std::string> names_;
  GradientBuckets buckets_;
  std::optional<GradientCompressor> compressor_;
};

}  // namespace tutti::detail
