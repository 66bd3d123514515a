// What replicas have measured of a step's rows, shard by shard.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <torch/types.h>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

// Shared with the replicas: one that misses the deadline still writes to it.
class ShardMetrics {
 public:
  ShardMetrics(std::size_t shards, std::size_t metrics) : metrics_(metrics), sums_(2 * shards * metrics) {}

  void measure(const Run& run, int shard, const torch::Tensor& output, const torch::Tensor& target) {
    const torch::NoGradGuard no_grad;
    const std::size_t first = 2 * static_cast<std::size_t>(shard) * metrics_;
    for (std::size_t m = 0; m < metrics_; ++m) {
      const MetricSum sum = run.metrics[m].metric.measure(output, target);
      const std::lock_guard lock(mutex_);  // before the first step all replicas compute the same shard
      sums_[first + 2 * m] = sum.sum;
      sums_[first + 2 * m + 1] = sum.count;
    }
  }

  std::vector<double>& sums() { return sums_; }

  // In the order of shards: the same bits on any number of replicas.
  MetricSum total(std::size_t metric) const {
    MetricSum all;
    for (std::size_t i = 2 * metric; i < sums_.size(); i += 2 * metrics_) {
      all.sum += sums_[i];
      all.count += sums_[i + 1];
    }
    return all;
  }

 private:
  std::size_t metrics_;
  std::mutex mutex_;
  std::vector<double> sums_;  // by shard and metric: sum and count
};

}  // namespace tutti::detail
