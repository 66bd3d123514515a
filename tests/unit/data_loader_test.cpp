// Batches made ahead: the rows of a sampler, for every rank its own, changed by chance in the same way.
#include <tutti/data/loader.hpp>

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include <tutti/data/subset.hpp>

#include "support/usage_error.hpp"

namespace tutti::data_loader_test {
namespace {

using Numbers = std::vector<std::int64_t>;

std::shared_ptr<const Dataset> squares(std::int64_t rows) {
  return std::make_shared<TensorDataset>(std::vector{torch::arange(rows)}, torch::arange(rows).pow(2));
}

TEST(Loader, HandsOutTheBatchesOfItsSampler) {
  const SamplerOptions sampling{.rows = 50, .batch_size = 8, .seed = 5};
  Sampler sampler(sampling);
  for (const std::size_t ahead : {1u, 4u}) {
    Loader loader(squares(50), {.sampler = sampling, .ahead = ahead});
    EXPECT_EQ(loader.steps_per_epoch(), 7);
    for (std::int64_t step = 0; step < 20; ++step) {
      const DataBatch batch = loader.next();
      EXPECT_EQ(batch.step, step);
      EXPECT_EQ(batch.epoch, step / 7);
      EXPECT_EQ(batch.numbers, sampler.rows_of(step).numbers);
      EXPECT_TRUE(batch.rows.inputs.front().equal(torch::tensor(batch.numbers)));
      EXPECT_TRUE(batch.rows.target.equal(torch::tensor(batch.numbers).pow(2)));
    }
    loader.start_at(33);
    EXPECT_EQ(loader.next().numbers, sampler.rows_of(33).numbers);
    Loader later(squares(50), {.sampler = sampling, .first_step = 12});
    EXPECT_EQ(later.next().numbers, sampler.rows_of(12).numbers);
  }
}

// The rows of all ranks together are those of the batch, in any world.
TEST(Loader, GivesEveryRankRowsOfItsOwn) {
  const SamplerOptions sampling{.rows = 21, .batch_size = 8, .seed = 5};
  for (const int ranks : {1, 2, 3, 5, 8}) {
    Numbers seen;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(squares(21), {.sampler = sampling, .shards = {.first = rank, .count = 1, .of = ranks}});
      for (std::int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
        const DataBatch batch = loader.next();
        EXPECT_EQ(batch.rows_of_all, step == 2 ? 5 : 8);
        EXPECT_EQ(batch.rows.target.size(0), static_cast<std::int64_t>(batch.numbers.size()));
        seen.insert(seen.end(), batch.numbers.begin(), batch.numbers.end());
      }
    }
    std::ranges::sort(seen);
    Numbers expected(21);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(seen, expected) << ranks;
  }
}

TEST(Loader, LeavesImagesPackedForWhoeverComputes) {
  torch::Tensor bytes = torch::arange(24 * 9, torch::kUInt8).reshape({24, 1, 3, 3});
  const auto images = std::make_shared<TensorDataset>(std::vector{bytes}, torch::arange(24));
  std::vector<std::int64_t> odd(12);
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<std::int64_t>(2 * i + 1);
  const auto part = std::make_shared<SubsetDataset>(images, odd);
  for (const std::shared_ptr<const Dataset>& dataset : {std::shared_ptr<const Dataset>(images), {part}}) {
    Loader loader(dataset, {.sampler = {.rows = dataset->size(), .batch_size = 5, .seed = 3},
                            .shards = {.first = 1, .count = 2, .of = 3}});
    const DataBatch batch = loader.next();
    EXPECT_EQ(batch.rows.inputs[0].scalar_type(), torch::kUInt8);
    Numbers of_second{batch.numbers.begin() + 2, batch.numbers.end()};
    const DataRows expected = dataset->rows(of_second);
    EXPECT_TRUE(batch.rows_of_shard(2).inputs[0].equal(expected.inputs[0]));
    EXPECT_TRUE(batch.rows_of_shard(2).target.equal(expected.target));
  }
}

TEST(Loader, ChangesAnImageTheSameWayInAnyWorld) {
  torch::manual_seed(2);
  const auto images = std::make_shared<TensorDataset>(std::vector{torch::rand({20, 1, 6, 6}), torch::rand({20, 3})},
                                                      torch::zeros({20}));
  LoaderOptions options{.sampler = {.rows = 20, .batch_size = 6, .seed = 9},
                        .augment = AugmentOptions{.flip = true, .shift = 2}};
  Loader whole(images, options);
  const DataBatch together = whole.next();
  const DataRows plain = images->rows(together.numbers);
  EXPECT_FALSE(together.rows.inputs[0].equal(plain.inputs[0]));
  EXPECT_TRUE(together.rows.inputs[1].equal(plain.inputs[1]));
  options.shards.of = 3;
  for (int& shard = options.shards.first; shard < 3; ++shard) {
    Loader part(images, options);
    EXPECT_TRUE(part.next().rows.inputs[0].equal(together.rows.inputs[0].slice(0, shard, torch::indexing::None, 3)));
  }
}

TEST(Loader, ChangesAnImageAnotherWayInTheNextEpoch) {
  const auto images = std::make_shared<TensorDataset>(std::vector{torch::rand({20, 1, 6, 6})}, torch::zeros({20}));
  Loader loader(images, {.sampler = {.rows = 20, .batch_size = 20, .seed = 9, .shuffle = false},
                         .augment = AugmentOptions{.flip = true, .shift = 2}});
  const DataBatch first = loader.next();
  const DataBatch second = loader.next();
  EXPECT_EQ(second.epoch, 1);
  EXPECT_EQ(first.numbers, second.numbers);
  EXPECT_FALSE(first.rows.inputs[0].equal(second.rows.inputs[0]));
}

class Broken : public Dataset {
 public:
  std::int64_t size() const override { return 10; }
  DataRows rows(std::span<const std::int64_t> numbers) const override {
    if (std::ranges::find(numbers, 5) != numbers.end()) throw UsageError("t.csv:7: row 5 is bad");
    return {.inputs = {}, .target = torch::zeros({static_cast<std::int64_t>(numbers.size())})};
  }
};

TEST(Loader, TellsTheCallerWhatIsWrongWithARow) {
  Loader loader(std::make_shared<Broken>(), {.sampler = {.rows = 10, .batch_size = 2, .shuffle = false}});
  EXPECT_EQ(loader.next().step, 0);
  EXPECT_EQ(loader.next().step, 1);
  EXPECT_EQ(testing::usage_error([&] { (void)loader.next(); }), "t.csv:7: row 5 is bad");
}

TEST(Loader, RefusesWhatDoesNotFit) {
  EXPECT_EQ(testing::usage_error([] { Loader loader(squares(5), {.sampler = {.rows = 4, .batch_size = 2}}); }),
            "expected a sampler of the dataset's 5 rows, found one of 4");
  EXPECT_EQ(testing::usage_error([] {
              Loader loader(squares(5), {.sampler = {.rows = 5, .batch_size = 2}, .shards = {2, 1, 2}});
            }),
            "there are no 1 shards from 2 on among 2");
}

}  // namespace
}  // namespace tutti::data_loader_test
