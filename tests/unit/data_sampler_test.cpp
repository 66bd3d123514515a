// Which rows a step takes: each once an epoch, whatever the sizes, and the same wherever a run goes on.
#include <tutti/data/sampler.hpp>

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(Sampler, TakesEveryRowOnceAnEpoch) {
  for (const std::int64_t rows : {1, 2, 3, 7, 8, 64, 100}) {
    for (const std::int64_t batch_size : {1, 2, 3, 7, 8, 9, 100, 1000}) {
      for (const bool shuffle : {true, false}) {
        for (const bool drop_last : {false, true}) {
          if (drop_last && batch_size > rows) continue;
          SCOPED_TRACE(::testing::Message() << rows << " rows, batches of " << batch_size);
          Sampler sampler(
              {.rows = rows, .batch_size = batch_size, .seed = 3, .shuffle = shuffle, .drop_last = drop_last});
          std::int64_t step = 0;
          for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
            Numbers seen;
            for (std::int64_t i = 0; i < sampler.steps_per_epoch(); ++i, ++step) {
              const SampledRows batch = sampler.rows_of(step);
              EXPECT_EQ(batch.step, step);
              EXPECT_EQ(batch.epoch, epoch);
              const bool is_last = i + 1 == sampler.steps_per_epoch();
              EXPECT_TRUE(static_cast<std::int64_t>(batch.numbers.size()) == batch_size || (is_last && !drop_last));
              EXPECT_FALSE(batch.numbers.empty());
              seen.insert(seen.end(), batch.numbers.begin(), batch.numbers.end());
            }
            std::ranges::sort(seen);
            EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
            EXPECT_GE(seen.front(), 0);
            EXPECT_LT(seen.back(), rows);
            EXPECT_EQ(static_cast<std::int64_t>(seen.size()), drop_last ? rows - rows % batch_size : rows);
          }
        }
      }
    }
  }
}

TEST(Sampler, GoesOnAnywhere) {
  Sampler forwards({.rows = 50, .batch_size = 8, .seed = 5});
  std::vector<Numbers> batches;
  for (std::int64_t step = 0; step < 30; ++step) batches.push_back(forwards.rows_of(step).numbers);
  for (const std::int64_t step : {29, 0, 7, 6, 13, 14, 28}) {
    Sampler there({.rows = 50, .batch_size = 8, .seed = 5});
    EXPECT_EQ(there.rows_of(step).numbers, batches[static_cast<std::size_t>(step)]);
    EXPECT_EQ(forwards.rows_of(step).numbers, batches[static_cast<std::size_t>(step)]);
  }
}

TEST(Sampler, HasAnOrderForEachSeedAndEpoch) {
  EXPECT_EQ(shuffled_rows(100, 1, 2), shuffled_rows(100, 1, 2));
  EXPECT_NE(shuffled_rows(100, 1, 2), shuffled_rows(100, 1, 3));
  EXPECT_NE(shuffled_rows(100, 1, 2), shuffled_rows(100, 2, 2));
  Sampler in_order({.rows = 5, .batch_size = 3, .shuffle = false});
  EXPECT_EQ(in_order.rows_of(3).numbers, (Numbers{3, 4}));
}

TEST(Sampler, RefusesWhatMakesNoBatch) {
  const auto refused = [](const SamplerOptions& options) {
    return testing::usage_error([&] { Sampler sampler(options); });
  };
  EXPECT_EQ(refused({.rows = 0, .batch_size = 8}), "there are no rows to take batches of");
  EXPECT_EQ(refused({.rows = 8, .batch_size = 0}), "expected a batch of at least 1 row, found 0");
  EXPECT_EQ(refused({.rows = 7, .batch_size = 8, .drop_last = true}),
            "7 rows make no batch of 8, and drop_last leaves out smaller ones");
  EXPECT_EQ(testing::usage_error([] { (void)Sampler({.rows = 1, .batch_size = 1}).rows_of(-1); }),
            "expected a step from 0 on, found -1");
}

}  // namespace
}  // namespace tutti
