// Splits of rows: every row in one part, whatever the shares.
#include <tutti/data/split.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(SplitRows, GivesEveryRowToOnePart) {
  for (const std::int64_t rows : {3, 4, 5, 7, 10, 99, 150, 1001}) {
    for (const double test : {0.0, 0.001, 0.1, 0.25, 0.3}) {
      for (const double validation : {0.0, 0.001, 0.1, 0.5}) {
        for (const bool shuffle : {true, false}) {
          const RowSplit split = split_rows(rows, {.test = test, .validation = validation, .shuffle = shuffle}, 7);
          SCOPED_TRACE(::testing::Message() << rows << " rows, " << test << ", " << validation);
          Numbers all;
          for (const Numbers* part : {&split.train, &split.validation, &split.test}) {
            EXPECT_TRUE(std::ranges::is_sorted(*part));
            all.insert(all.end(), part->begin(), part->end());
          }
          std::ranges::sort(all);
          Numbers expected(static_cast<std::size_t>(rows));
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(all, expected);
          EXPECT_FALSE(split.train.empty());
          const auto expect_share = [&](const Numbers& part, double share) {
            EXPECT_EQ(part.empty(), share == 0);
            EXPECT_LE(std::abs(static_cast<double>(part.size()) - share * static_cast<double>(rows)), 1);
          };
          expect_share(split.test, test);
          expect_share(split.validation, validation);
          if (!shuffle) {
            EXPECT_EQ(split.train.back(), static_cast<std::int64_t>(split.train.size()) - 1);
            EXPECT_TRUE(split.test.empty() ||
                        split.test.front() == rows - static_cast<std::int64_t>(split.test.size()));
          }
        }
      }
    }
  }
}

TEST(SplitRows, FollowsFromTheSeedAlone) {
  const auto test_rows = [](std::uint64_t seed) { return split_rows(1000, {.test = 0.2}, seed).test; };
  EXPECT_EQ(test_rows(7), test_rows(7));
  EXPECT_NE(test_rows(7), test_rows(8));
}

// Over many seeds every row is as often a test row as any other: 60 times of 300, give or take 7 (one deviation).
TEST(SplitRows, PrefersNoRow) {
  std::vector<int> times(50);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    for (const std::int64_t row : split_rows(50, {.test = 0.2}, seed).test) ++times[static_cast<std::size_t>(row)];
  }
  EXPECT_GT(*std::ranges::min_element(times), 60 - 5 * 7);
  EXPECT_LT(*std::ranges::max_element(times), 60 + 5 * 7);
}

TEST(SplitRows, LeavesRowsToTrainWith) {
  EXPECT_EQ(split_rows(150, {.test = 0.2, .validation = 0.1}, 0).test.size(), 30u);
  EXPECT_EQ(split_rows(150, {.test = 0.2, .validation = 0.1}, 0).validation.size(), 15u);
  EXPECT_EQ(testing::usage_error([] { (void)split_rows(1, {.test = 0.2}, 0); }),
            "a split of 1 row into 1 for testing and 0 for validation leaves none to train with");
  EXPECT_EQ(testing::usage_error([] { (void)split_rows(0, {}, 0); }),
            "a split of 0 rows into 0 for testing and 0 for validation leaves none to train with");
  EXPECT_EQ(testing::usage_error([] { (void)split_rows(10, {.test = 0.5, .validation = 0.5}, 0); }),
            "expected shares from 0 to 1, and less than 1 together, found 0.5 and 0.5");
  EXPECT_NE(testing::usage_error([] { (void)split_rows(10, {.test = std::nan("")}, 0); }), "(no error)");
}

}  // namespace
}  // namespace tutti
