#include "report.hpp"

#include <gtest/gtest.h>

#include "support/bench_point.hpp"

namespace tutti::bench {
namespace {

using cli::BenchResult;

constexpr Bytes kSizes[] = {Bytes{1 << 10}, Bytes{4 << 20}};

TEST(CombinePasses, TakesTheMedianOverThePassesAndOrdersByRanksAndSize) {
  std::vector<BenchResult> results;
  for (const double seconds : {3.0, 1.0, 2.0}) {
    results.push_back(point("tutti", "Ring", 4, kSizes[1], 10 * seconds));
    results.push_back(point("tutti", "Ring", 2, kSizes[1], seconds));
    results.push_back(point("gloo", "default", 2, kSizes[0], 100 * seconds));
  }
  const std::vector<BenchResult> points = combine_passes(results);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].engine, "gloo");
  EXPECT_EQ(points[0].timing.median, 200);
  EXPECT_EQ(points[1].timing.median, 2);
  EXPECT_EQ(points[2].timing.median, 20);
  EXPECT_EQ(points[2].timing.repetitions, 45u);
}

TEST(Points, TellTheFastestOfThoseWantedAndItsSpeedOverOthers) {
  const std::vector<BenchResult> all{point("tutti", "Auto", 2, kSizes[0], 2), point("tutti", "Ring", 2, kSizes[0], 1),
                                     point("gloo", "default", 2, kSizes[0], 8),
                                     point("gloo", "default", 4, kSizes[0], 3)};
  const Points points(all);
  EXPECT_EQ(points.places(), (std::set<Place>{{2, kSizes[0]}, {4, kSizes[0]}}));
  EXPECT_EQ(points.seconds({2, kSizes[0]}, by("tutti")), 1);
  EXPECT_EQ(points.speed({2, kSizes[0]}, by("tutti", "Auto"), by("gloo")), 4);
  EXPECT_EQ(points.speed({4, kSizes[0]}, by("tutti", "Auto"), by("gloo")), std::nullopt);
  EXPECT_EQ(points.seconds({2, kSizes[1]}, by("gloo")), std::nullopt);
}

}  // namespace
}  // namespace tutti::bench
