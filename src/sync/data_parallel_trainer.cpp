#include <tutti/sync/data_parallel_trainer.hpp>

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

double weight_of(const WorkerUpdate& update) {
  return update.weight.value_or(static_cast<double>(update.samples_processed));
}

void refuse_unless_they_fit(std::span<const WorkerUpdate> updates) {
  if (updates.empty()) throw UsageError("there are no updates to merge");
  const WorkerUpdate& first = updates.front();
  std::set<int> seen;
  std::uint64_t samples = 0;
  for (const WorkerUpdate& update : updates) {
    if (!seen.insert(update.worker_id).second)
      throw UsageError(fmt::format("worker {} has two updates in one merge", update.worker_id));
    if (update.gradients.size() != first.gradients.size()) {
      throw UsageError(fmt::format("worker {} brought {} gradients, and worker {} brought {}", first.worker_id,
                                   first.gradients.size(), update.worker_id, update.gradients.size()));
    }
    if (const double weight = weight_of(update); !std::isfinite(weight) || weight < 0)
      throw UsageError(fmt::format("worker {}: expected a weight from 0 on, found {}", update.worker_id, weight));
    if (__builtin_add_overflow(samples, update.samples_processed, &samples))
      throw UsageError(fmt::format("worker {}: more samples than can be counted", update.worker_id));
  }
}

}  // namespace

void detail::refuse_no_workers(int workers) {
  if (workers < 1) throw UsageError(fmt::format("work is for at least 1 worker, found {}", workers));
}

std::vector<std::size_t> partition_indices(std::size_t count, int workers, int worker) {
  detail::refuse_no_workers(workers);
  if (worker < 0 || worker >= workers)
    throw UsageError(fmt::format("expected a worker from 0 to {}, found {}", workers - 1, worker));
  std::vector<std::size_t> indices;
  for (std::size_t i = static_cast<std::size_t>(worker); i < count; i += static_cast<std::size_t>(workers))
    indices.push_back(i);
  return indices;
}

ModelUpdate DataParallelTrainer::merge_worker_updates(std::span<const WorkerUpdate> updates) {
  refuse_unless_they_fit(updates);
  double weight = 0;
  for (const WorkerUpdate& update : updates) weight += weight_of(update);
  if (!(weight > 0) || !std::isfinite(weight))
    throw UsageError(fmt::format("the updates weigh {} together, so they have no mean", weight));
  ModelUpdate merged;
  std::vector<double> sums(updates.front().gradients.size());
  double loss = 0;
  for (const WorkerUpdate& update : updates) {
    merged.total_samples += update.samples_processed;
    const double counts = weight_of(update);
    // What counts for nothing may be anything, even no number.
    if (counts == 0) continue;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += counts * static_cast<double>(update.gradients[i]);
    loss += counts * update.loss;
  }
  for (double sum : sums) merged.averaged_gradients.push_back(static_cast<float>(sum / weight));
  merged.mean_loss = loss / weight;
  return merged;
}

double total_weight(std::span<const DistributedTrainingSample> samples) {
  double sum = 0;
  for (const DistributedTrainingSample& sample : samples) sum += sample.weight.value_or(1);
  return sum;
}

}  // namespace tutti
