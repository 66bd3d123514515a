#include "cli/measure.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace tutti::cli {
namespace {

// A rank that counts, and takes about `pause` for each call.
struct CountingRank {
  std::uint64_t calls = 0;
  std::uint64_t calls_since_filling = 0;
  std::uint64_t most_since_filling = 0;
  std::uint64_t fillings = 0;
  std::chrono::microseconds pause{0};

  RankCalls rank_calls(std::uint64_t calls_per_filling) {
    return {.call =
                [this] {
                  ++calls;
                  most_since_filling = std::max(most_since_filling, ++calls_since_filling);
                  if (pause.count() > 0) std::this_thread::sleep_for(pause);
                },
            .refill =
                [this] {
                  ++fillings;
                  calls_since_filling = 0;
                },
            .agree = [](std::uint64_t value) { return value; },
            .calls_per_filling = calls_per_filling};
  }
};

TEST(Percentile, LiesBetweenTheTwoNearest) {
  EXPECT_DOUBLE_EQ(median({3}), 3);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.1), 4);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40}, 0.9), 36);
  EXPECT_DOUBLE_EQ(percentile({0, 10}, 1), 10);
}

TEST(CallTimer, NeverCallsMoreOftenThanAFillingAllows) {
  for (const std::uint64_t limit : {2u, 3u, 10u, 100u}) {
    for (const std::uint64_t bytes : {4u, 1u << 20}) {
      CountingRank rank;
      CallTimer timer(rank.rank_calls(limit));
      const Plan plan = timer.plan(bytes, {.seconds = 0.001});
      timer.take(plan);
      EXPECT_LE(rank.most_since_filling, limit);
    }
  }
}

TEST(CallTimer, TakesExactlyTheRepetitionsAskedFor) {
  CountingRank rank;
  CallTimer timer(rank.rank_calls(1000));
  const Plan plan = timer.plan(4, {.repetitions = 7});
  EXPECT_EQ(plan.repetitions, 7u);
  EXPECT_EQ(timer.take(plan).size(), 7u);
}

TEST(CallTimer, TimesLargeCallsOneByOneAndAtLeastFifteen) {
  CountingRank rank{.pause = std::chrono::microseconds(500)};
  CallTimer timer(rank.rank_calls(1000));
  const Plan plan = timer.plan(64 << 10, {.seconds = 0});
  EXPECT_EQ(plan.batch, 1u);
  EXPECT_EQ(plan.repetitions, 15u);
  for (const double seconds : timer.take(plan)) EXPECT_GE(seconds, 500e-6);
}

TEST(CallTimer, TimesSmallCallsInBatches) {
  CountingRank rank;
  CallTimer timer(rank.rank_calls(1000));
  EXPECT_GT(timer.plan(4, {.seconds = 0.001}).batch, 1u);
}

TEST(CallTimer, FollowsRankZerosPlan) {
  CountingRank rank;
  RankCalls calls = rank.rank_calls(1000);
  calls.agree = [](std::uint64_t) { return 42; };
  CallTimer timer(calls);
  const Plan plan = timer.plan(4, {});
  EXPECT_EQ(plan.repetitions, 42u);
  EXPECT_EQ(plan.batch, 42u);
}

}  // namespace
}  // namespace tutti::cli
