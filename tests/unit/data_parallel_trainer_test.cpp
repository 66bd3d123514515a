#include <tutti/sync/data_parallel_trainer.hpp>

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::vector<int>> split(const std::vector<int>& data, int workers) {
  return DataParallelTrainer::split_batch<int>(data, workers);
}

TEST(PartitionIndices, GoesByStride) {
  EXPECT_THAT(partition_indices(10, 3, 0), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(partition_indices(10, 3, 2), ElementsAre(2, 5, 8));
  EXPECT_THAT(partition_indices(2, 3, 2), IsEmpty());
  EXPECT_THROW(partition_indices(10, 0, 0), UsageError);
  EXPECT_THROW(partition_indices(10, 3, 3), UsageError);
  EXPECT_THROW(partition_indices(10, 3, -1), UsageError);
}

TEST(SplitBatch, GivesSampleIToWorkerIModNInOrder) {
  EXPECT_THAT(split({10, 11, 12, 13, 14}, 2), ElementsAre(ElementsAre(10, 12, 14), ElementsAre(11, 13)));
  for (int workers = 1; workers <= 7; ++workers) {
    for (int count = 0; count <= 20; ++count) {
      std::vector<int> data;
      for (int i = 0; i < count; ++i) data.push_back(i);
      const auto shards = split(data, workers);
      ASSERT_EQ(shards.size(), static_cast<std::size_t>(workers));
      std::size_t total = 0;
      for (std::size_t worker = 0; worker < shards.size(); ++worker) {
        EXPECT_LE(shards[worker].size(), shards[0].size());
        EXPECT_GE(shards[worker].size() + 1, shards[0].size());
        total += shards[worker].size();
        for (std::size_t i = 0; i < shards[worker].size(); ++i)
          EXPECT_EQ(shards[worker][i], static_cast<int>(worker) + static_cast<int>(i) * workers);
      }
      EXPECT_EQ(total, data.size());
    }
  }
}

TEST(SplitBatch, GivesEmptyShardsWithoutDataAndRefusesNoWorkers) {
  EXPECT_THAT(split({}, 3), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THROW(split({1}, 0), UsageError);
  EXPECT_THROW(split({}, -2), UsageError);
}

TEST(SplitBatch, TakesSamplesOfAnyKind) {
  const std::vector<std::string> words{"a", "b", "c"};
  EXPECT_THAT(DataParallelTrainer::split_batch<std::string>(words, 2),
              ElementsAre(ElementsAre("a", "c"), ElementsAre("b")));
  const std::vector<DistributedTrainingSample> samples{{{1, 2}, 0, 2.5}, {{3, 4}, 1, {}}};
  EXPECT_EQ(total_weight(samples), 3.5);
}

TEST(MergeWorkerUpdates, WeighsBySamples) {
  const ModelUpdate merged = DataParallelTrainer::merge_worker_updates(std::vector<WorkerUpdate>{
      {.worker_id = 0, .gradients = {4}, .loss = 8, .samples_processed = 1},
      {.worker_id = 1, .gradients = {0}, .loss = 4, .samples_processed = 3},
  });
  EXPECT_THAT(merged.averaged_gradients, ElementsAre(1));
  EXPECT_EQ(merged.mean_loss, 5);
  EXPECT_EQ(merged.total_samples, 4u);
}

TEST(MergeWorkerUpdates, WeighsByTheSamplesWeightsWhereTheyAreTold) {
  const ModelUpdate merged = DataParallelTrainer::merge_worker_updates(std::vector<WorkerUpdate>{
      {.worker_id = 3, .gradients = {1, 2}, .loss = 1, .samples_processed = 10, .weight = 0.5},
      {.worker_id = 1, .gradients = {5, 6}, .loss = 5, .samples_processed = 1, .weight = 1.5},
      {.worker_id = 2, .gradients = {std::nanf(""), 0}, .loss = NAN, .samples_processed = 7, .weight = 0},
  });
  EXPECT_THAT(merged.averaged_gradients, ElementsAre(4, 5));
  EXPECT_EQ(merged.mean_loss, 4);
  EXPECT_EQ(merged.total_samples, 18u);
}

TEST(MergeWorkerUpdates, RefusesWhatHasNoMeanAndSaysWhose) {
  const auto message = [](const std::vector<WorkerUpdate>& updates) {
    return testing::usage_error([&] { DataParallelTrainer::merge_worker_updates(updates); });
  };
  const WorkerUpdate one{.worker_id = 1, .gradients = {1, 2}, .loss = 0, .samples_processed = 1};
  WorkerUpdate other = one;
  other.worker_id = 2;
  EXPECT_EQ(message({}), "there are no updates to merge");
  EXPECT_EQ(message({one, one}), "worker 1 has two updates in one merge");
  other.gradients.pop_back();
  EXPECT_EQ(message({one, other}), "worker 1 brought 2 gradients, and worker 2 brought 1");
  other.gradients = one.gradients;
  for (double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    other.weight = weight;
    EXPECT_NE(message({one, other}).find("worker 2: expected a weight from 0 on, found"), std::string::npos);
  }
  other.weight.reset();
  other.samples_processed = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(message({one, other}), "worker 2: more samples than can be counted");
  other.samples_processed = 0;
  WorkerUpdate idle = one;
  idle.samples_processed = 0;
  EXPECT_EQ(message({idle, other}), "the updates weigh 0 together, so they have no mean");
}

}  // namespace
}  // namespace tutti
