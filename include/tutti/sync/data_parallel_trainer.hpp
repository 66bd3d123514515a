// The two ends of a data-parallel step: a batch is split over workers, and what they made of it is merged.
//
//   const auto shards = DataParallelTrainer::split_batch<Sample>(batch, 3);          // sample i goes to worker i mod 3
//   ... each worker: WorkerUpdate{.worker_id = 0, .gradients = ..., .loss = ..., .samples_processed = shards[0].size()}
//   const ModelUpdate update = DataParallelTrainer::merge_worker_updates(updates);   // weighted means
//
// A sample is whatever the user calls one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tutti {

struct DistributedTrainingSample {
  std::vector<float> features;
  float label = 0;
  std::optional<double> weight = {};  // 1, unless set
};

struct WorkerUpdate {
  int worker_id = 0;
  std::vector<float> gradients;  // means over its samples
  double loss = 0;
  std::uint64_t samples_processed = 0;
  // What it counts for: the sum of its samples' weights. As many as its samples, unless set.
  std::optional<double> weight = {};
};

struct ModelUpdate {
  std::vector<float> averaged_gradients;
  double mean_loss = 0;
  std::uint64_t total_samples = 0;
};

// Which of `count` things a worker gets: every workers-th, from its own number on. A UsageError where there are no
// workers, or no such one.
std::vector<std::size_t> partition_indices(std::size_t count, int workers, int worker);

namespace detail {
void refuse_no_workers(int workers);
}

class DataParallelTrainer {
 public:
  // Sample i goes to worker i mod n_workers, and keeps its place among that worker's. Sizes differ by at most one;
  // without data all are empty. A UsageError where there are no workers.
  template <typename Sample>
  static std::vector<std::vector<Sample>> split_batch(std::span<const Sample> data, int n_workers) {
    detail::refuse_no_workers(n_workers);
    std::vector<std::vector<Sample>> shards;
    for (int worker = 0; worker < n_workers; ++worker) {
      std::vector<Sample>& shard = shards.emplace_back();
      for (std::size_t index : partition_indices(data.size(), n_workers, worker)) shard.push_back(data[index]);
    }
    return shards;
  }

  // Gradients and loss averaged, by weight; sums are in double, in the updates' order. A UsageError names the worker
  // whose update cannot be: another number of gradients, a negative weight or none that is a number, counts that
  // overflow, a worker that comes twice; or where nothing weighs anything.
  static ModelUpdate merge_worker_updates(std::span<const WorkerUpdate> updates);
};

// What samples count for together.
double total_weight(std::span<const DistributedTrainingSample> samples);

}  // namespace tutti
