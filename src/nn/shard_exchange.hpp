// Gradients of logical shards, added up over ranks: the same bits however many ranks computed them.
#pragma once

#include <tutti/collective/communicator.hpp>
#include <tutti/strategy/all_reduce_strategy.hpp>

#include "gradient_buckets.hpp"
#include "shard_gradients.hpp"

namespace tutti::detail {

// The bucket gets the sum over the shards of all ranks, along the tree over them (sync/shard_fold.hpp). All ranks call
// it, each with the gradients of its own chunk of the shards.
void sum_shards(Communicator& world, int shards, const ShardGradients& mine, GradientBucket& bucket,
                const AllReduceStrategy& algorithm);

}  // namespace tutti::detail
