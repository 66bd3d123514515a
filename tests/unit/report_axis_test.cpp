#include "report/axis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::detail {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> labels(const Axis& axis, double smallest_step = 0) {
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks(smallest_step)) labels.push_back(tick.label);
  return labels;
}

TEST(Axis, GoesFromTheSmallestToTheLargestValue) {
  const Axis axis = Axis::of({3, -1, 2});
  EXPECT_FALSE(axis.is_logarithmic());
  EXPECT_EQ(axis.share(-1), 0);
  EXPECT_EQ(axis.share(1), 0.5);
  EXPECT_EQ(axis.share(3), 1);
  EXPECT_EQ(axis.share(9), 1) << "nothing stands beyond its ends";
}

TEST(Axis, IsLogarithmicWhereValuesArePositiveAndFarApart) {
  EXPECT_FALSE(Axis::of({0.1, 1.99}).is_logarithmic());
  EXPECT_FALSE(Axis::of({0, 100}).is_logarithmic());
  EXPECT_FALSE(Axis::of({-1, 100}).is_logarithmic());
  EXPECT_FALSE(Axis::linear({1, 100}).is_logarithmic());
  const Axis axis = Axis::of({1, 100});
  EXPECT_TRUE(axis.is_logarithmic());
  EXPECT_EQ(axis.share(1), 0);
  EXPECT_DOUBLE_EQ(axis.share(10), 0.5);
  EXPECT_EQ(axis.share(100), 1);
}

TEST(Axis, HasTicksAtRoundNumbers) {
  EXPECT_THAT(labels(Axis::of({0, 1})), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(labels(Axis::of({0.83, 0.91})),
              ElementsAre("0.83", "0.84", "0.85", "0.86", "0.87", "0.88", "0.89", "0.90", "0.91"));
  EXPECT_THAT(labels(Axis::of({-3, 1000})), ElementsAre("0", "200", "400", "600", "800", "1000"));
  EXPECT_THAT(labels(Axis::linear({1, 4}), 1), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(labels(Axis::linear({7}), 1), ElementsAre("7"));
  EXPECT_THAT(labels(Axis::of({0.013, 0.8})), ElementsAre("0.02", "0.05", "0.1", "0.2", "0.5"));
  EXPECT_THAT(labels(Axis::of({1e-5, 1})), ElementsAre("1e-05", "0.0001", "0.001", "0.01", "0.1", "1"));
}

TEST(Axis, HasOneToTenTicksWhateverTheValues) {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr double kMin = std::numeric_limits<double>::min();
  std::vector<std::vector<double>> all{
      {}, {0}, {5}, {-1e-300}, {kMax}, {-kMax, kMax}, {kMin, kMax}, {1, 1 + 1e-15}, {-2e9, 2e9}, {0, kMin}};
  for (double ratio = 1.0001; ratio < 1e12; ratio *= 1.37) {
    all.push_back({0.37, 0.37 * ratio});
    all.push_back({-1, -1 + ratio});
  }
  for (const std::vector<double>& values : all) {
    for (const Axis& axis : {Axis::of(values), Axis::linear(values)}) {
      const std::vector<std::string> its = labels(axis);
      EXPECT_GE(its.size(), 1u) << ::testing::PrintToString(values);
      EXPECT_LE(its.size(), 10u) << ::testing::PrintToString(values);
      EXPECT_EQ(std::adjacent_find(its.begin(), its.end()), its.end()) << ::testing::PrintToString(its);
      for (const Tick& tick : axis.ticks()) {
        EXPECT_GE(axis.share(tick.value), 0);
        EXPECT_LE(axis.share(tick.value), 1);
      }
      for (const double value : values) EXPECT_TRUE(std::isfinite(axis.share(value)));
    }
  }
}

}  // namespace
}  // namespace tutti::detail
