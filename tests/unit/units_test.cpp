#include "cli/units.hpp"

#include <gtest/gtest.h>

namespace tutti::cli {
namespace {

TEST(Units, SecondsKeepThreeDigitsThatCount) {
  EXPECT_EQ(format_seconds(2.68e-7), "268 ns");
  EXPECT_EQ(format_seconds(1.2345e-6), "1.23 us");
  EXPECT_EQ(format_seconds(45.67e-6), "45.7 us");
  EXPECT_EQ(format_seconds(0.00771), "7.71 ms");
  EXPECT_EQ(format_seconds(12.5), "12.5 s");
}

TEST(Units, RoundingUpMovesToTheNextUnit) {
  EXPECT_EQ(format_seconds(999.4e-6), "999 us");
  EXPECT_EQ(format_seconds(999.6e-6), "1.00 ms");
}

TEST(Units, FiguresHaveNoExponent) {
  EXPECT_EQ(format_figure(0), "0.00");
  EXPECT_EQ(format_figure(9.996), "10.0");
  EXPECT_EQ(format_figure(99.96), "100");
  EXPECT_EQ(format_figure(123456), "123456");
}

}  // namespace
}  // namespace tutti::cli
