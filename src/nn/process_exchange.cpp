#include "process_exchange.hpp"

#include <tutti/collective/collectives.hpp>

#include "shard_exchange.hpp"

namespace tutti::detail {
namespace {

// Long enough for the full speed of any engine, and short enough that what logical shards gather fits beside it.
constexpr Bytes kBucketSize{32 << 20};

}  // namespace

ProcessExchange::ProcessExchange(Communicator& world, const std::vector<ModuleParameter>& parameters,
                                 std::vector<bool> is_shared, const ProcessExchangeOptions& options)
    : world_(&world), options_(options) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    names_.push_back(parameters[i].name());
    if (is_shared[i]) order.push_back(i);
  }
  buckets_ = GradientBuckets(parameters, order, {.first = kBucketSize, .size = kBucketSize});
  if (!std::holds_alternative<NoCompression>(options.compression)) {
    compressor_.emplace(options.compression,
                        GradientCompressorOptions{.algorithm = options.algorithm, .seed = options.seed});
  }
}

void ProcessExchange::agree(std::vector<ShardLoss>& losses, std::vector<bool>& is_used) {
  const std::size_t shards = losses.size();
  std::vector<double> numbers(2 * shards + is_used.size());
  for (std::size_t s = 0; s < shards; ++s) {
    numbers[s] = losses[s].weight;
    numbers[shards + s] = losses[s].loss;
  }
  for (std::size_t i = 0; i < is_used.size(); ++i) numbers[2 * shards + i] = is_used[i] ? 1 : 0;
  all_reduce(*world_, numbers);  // each is one process's own, and 0 on all others
  for (std::size_t s = 0; s < shards; ++s) losses[s] = {.loss = numbers[shards + s], .weight = numbers[s]};
  for (std::size_t i = 0; i < is_used.size(); ++i) is_used[i] = numbers[2 * shards + i] > 0;
}

void ProcessExchange::add_up(double weight) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    GradientBucket& bucket = buckets_[b];
    if (!compressor_) {
      all_reduce(*world_, bucket.gradients.all(), {.algorithm = options_.algorithm, .op = ReduceOp::sum});
      continue;
    }
    // A mean of what is scaled so is that of the whole batch: what is kept for the next step is not weighed by the
    // weights of this one.
    bucket.memory.mul_(static_cast<double>(world_->size()) / weight);
    compressor_->exchange(*world_, bucket.gradients);
    bucket.memory.mul_(weight);
  }
}

void ProcessExchange::add_up(int shards, const ShardGradients& mine) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) sum_shards(*world_, shards, mine, buckets_[b], options_.algorithm);
}

void ProcessExchange::keep(const std::vector<bool>& is_used) {
  if (!compressor_) return;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (!is_used[i]) compressor_->forget(names_[i]);
  }
  compressor_->keep();
}

void ProcessExchange::forget() {
  if (compressor_) compressor_->forget();
}

}  // namespace tutti::detail
