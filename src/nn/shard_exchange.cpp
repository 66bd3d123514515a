#include "shard_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <tutti/base/chunk.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/sync/shard_fold.hpp>

namespace tutti::detail {
namespace {

// What is not there must not change a sum, not even the sign of a zero.
void fill_with_nothing(DataType type, std::byte* memory, std::size_t count) {
  if (type == DataType::float64) {
    std::fill_n(reinterpret_cast<double*>(memory), count, -0.0);
  } else {
    std::fill_n(reinterpret_cast<float*>(memory), count, -0.0f);
  }
}

// One part of a rank's gradients, in the bucket's order.
void copy_part(const ShardGradients& gradients, std::size_t part, const GradientBucket& bucket, std::byte* memory) {
  const DataType type = bucket.gradients.all().type();
  for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
    const Slice slice = bucket.gradients.pieces()[k].slice;
    std::byte* to = memory + slice.first * size_of(type);
    const torch::Tensor gradient =
        part < gradients.part_count() ? gradients.gradient(part, bucket.parameters[k]) : torch::Tensor();
    if (gradient.defined()) {
      std::memcpy(to, gradient.data_ptr(), slice.count * size_of(type));
    } else {
      fill_with_nothing(type, to, slice.count);
    }
  }
}

}  // namespace

void sum_shards(Communicator& world, int shards, const ShardGradients& mine, GradientBucket& bucket,
                const AllReduceStrategy& algorithm) {
  const Array all = bucket.gradients.all();
  const std::size_t bytes = all.bytes();
  std::vector<ShardPart> parts;     // of all ranks
  std::vector<std::size_t> counts;  // by rank
  for (int rank = 0; rank < world.size(); ++rank) {
    const Slice own = chunk(static_cast<std::size_t>(shards), world.size(), rank);
    const std::vector<ShardPart> its =
        parts_of_shards(shards, static_cast<int>(own.first), static_cast<int>(own.count));
    counts.push_back(its.size());
    parts.insert(parts.end(), its.begin(), its.end());
  }
  const std::size_t most = *std::ranges::max_element(counts);
  if (most == 1 && is_tree_over_parts(shards, parts)) {
    copy_part(mine, 0, bucket, all.data());
    return all_reduce(world, all, {.algorithm = algorithm, .op = ReduceOp::sum, .reproducible = true});
  }
  // Everybody sends as many parts as the one who has most.
  std::vector<std::byte> sent(most * bytes);
  for (std::size_t part = 0; part < most; ++part) copy_part(mine, part, bucket, sent.data() + part * bytes);
  std::vector<std::byte> gathered(sent.size() * static_cast<std::size_t>(world.size()));
  all_gather(world, ConstArray(sent.data(), most * all.length(), all.type()),
             Array(gathered.data(), most * all.length() * static_cast<std::size_t>(world.size()), all.type()));
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::size_t part = 0; part < counts[rank]; ++part)
      parts[next++].data = gathered.data() + (rank * most + part) * bytes;
  }
  fold_shards(all.type(), shards, parts, all.data(), all.length());
}

}  // namespace tutti::detail
