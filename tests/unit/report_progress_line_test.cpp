#include <tutti/report/progress_line.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ProgressState whole() {
  return {.step = 420,
          .steps = 1000,
          .epoch = 2,
          .epochs = 5,
          .loss = 0.1234,
          .metric = NamedNumber{"accuracy", 0.9125},
          .rows_per_second = 12345,
          .communication_share = 0.12,
          .seconds_left = 3723};
}

// Counts characters, and fails where the text is no UTF-8. Only for text whose characters take one column each.
int characters_of(std::string_view text) {
  int count = 0;
  int expected = 0;
  for (const char byte : text) {
    const auto bits = static_cast<std::uint8_t>(byte);
    const bool continues = (bits & 0xc0u) == 0x80u;
    EXPECT_EQ(continues, expected > 0) << text;
    if (continues) {
      --expected;
    } else {
      ++count;
      expected = bits >= 0xf0 ? 3 : bits >= 0xe0 ? 2 : bits >= 0xc0 ? 1 : 0;
    }
  }
  EXPECT_EQ(expected, 0) << text;
  return count;
}

TEST(ProgressLine, ShowsAllWhereThereIsRoom) {
  EXPECT_EQ(
      progress_line(whole(), 120),
      "[==========>                 ]   420/1000  epoch 2/5  loss 0.1234  accuracy 0.9125  12.3k rows/s  comm 12%  "
      "1:02:03 left");
  EXPECT_EQ(progress_line(whole(), 104, BarStyle::lines),
            "━━━━━─────────   420/1000  epoch 2/5  loss 0.1234  accuracy 0.9125  12.3k rows/s  comm 12%  1:02:03 left");
}

TEST(ProgressLine, IsWhatItsHeaderShows) {
  EXPECT_EQ(
      progress_line({.step = 420, .steps = 1000, .epoch = 2, .epochs = 5, .loss = 0.1234, .seconds_left = 3723}, 66),
      "[=====>         ]   420/1000  epoch 2/5  loss 0.1234  1:02:03 left");
}

TEST(ProgressLine, IsNeverLongerThanTheWidth) {
  std::vector<ProgressState> states{whole(), {}, {.step = 1}, {.step = 7, .steps = 9}};
  states.push_back(whole());
  states.back().metric->name = "größe-der-ähnlichkeit-über-alles-und-noch-mehr";
  states.push_back(whole());
  states.back().step = states.back().steps = 123456789012345;
  states.back().epoch = states.back().epochs = 1000000;
  states.push_back(whole());
  states.back().loss = kNaN;
  states.back().metric->value = -kInfinity;
  states.back().rows_per_second = kInfinity;
  states.back().communication_share = kNaN;
  states.back().seconds_left = kInfinity;
  states.push_back(whole());
  states.back().step = 2000;  // more than there are
  for (const ProgressState& state : states) {
    for (const BarStyle bar : {BarStyle::ascii, BarStyle::lines}) {
      for (int width = 0; width <= 200; ++width) {
        const std::string line = progress_line(state, width, bar);
        EXPECT_LE(characters_of(line), width) << line;
      }
    }
  }
}

TEST(ProgressLine, LeavesOutWhatMattersLeastFirst) {
  const std::vector<std::string> by_importance{"420/1000", "loss", "left", "accuracy", "[", "rows/s", "comm", "epoch"};
  std::size_t shown_before = 0;
  for (int width = 20; width <= 200; ++width) {
    const std::string line = progress_line(whole(), width);
    std::size_t shown = 0;
    while (shown < by_importance.size() && line.find(by_importance[shown]) != std::string::npos) ++shown;
    for (std::size_t i = shown; i < by_importance.size(); ++i) EXPECT_THAT(line, Not(HasSubstr(by_importance[i])));
    EXPECT_GE(shown, shown_before) << line;
    shown_before = shown;
  }
  EXPECT_EQ(shown_before, by_importance.size());
  EXPECT_EQ(progress_line(whole(), 20), " 420/1000");
  EXPECT_EQ(progress_line(whole(), 22), " 420/1000  loss 0.1234");
}

TEST(ProgressLine, CutsTheStepWhereNothingElseHelps) { EXPECT_EQ(progress_line(whole(), 5), " 420/"); }

TEST(ProgressLine, FillsItsBar) {
  const auto bar = [](std::int64_t step) { return progress_line({.step = step, .steps = 100}, 25).substr(0, 16); };
  EXPECT_EQ(bar(0), "[              ]");
  EXPECT_EQ(bar(10), "[>             ]");
  EXPECT_EQ(bar(50), "[======>       ]");
  EXPECT_EQ(bar(99), "[============> ]");
  EXPECT_EQ(bar(100), "[==============]");
}

TEST(ProgressLine, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(progress_line({.step = 3}, 80), "3");
  EXPECT_EQ(progress_line({.step = 3, .epoch = 1, .loss = 2.5}, 80), "3  epoch 1  loss 2.5000");
}

TEST(ProgressLine, ShowsLossesThatAreNotFinite) {
  EXPECT_EQ(progress_line({.step = 3, .loss = kNaN}, 80), "3  loss nan");
  EXPECT_EQ(progress_line({.step = 3, .loss = -kNaN}, 80), "3  loss nan");
  EXPECT_EQ(progress_line({.step = 3, .loss = kInfinity}, 80), "3  loss inf");
  EXPECT_EQ(progress_line({.step = 3, .loss = -kInfinity}, 80), "3  loss -inf");
}

TEST(ProgressLine, CountsTheColumnsOfNames) {
  // Two columns each, and a mark that takes none.
  const ProgressState wide{.step = 1, .metric = NamedNumber{"精度", 1}};
  EXPECT_EQ(progress_line(wide, 14), "1  精度 1.0000");
  EXPECT_EQ(progress_line(wide, 13), "1");
  const ProgressState marked{.step = 1, .metric = NamedNumber{"u\u0308", 1}};
  EXPECT_EQ(progress_line(marked, 11), "1  u\u0308 1.0000");
  EXPECT_EQ(progress_line(marked, 10), "1");
}

TEST(ProgressLine, StaysOnOneLineWhateverANameHolds) {
  EXPECT_EQ(progress_line({.step = 1, .metric = NamedNumber{"a\n\x1b[2J\xc2\x9b", 1}}, 80), "1  a  [2J  1.0000");
  EXPECT_EQ(progress_line({.step = 1, .metric = NamedNumber{"\xff\xc3(\xed\xa0\x80\xf0\x9f", 1}}, 80),
            "1  \ufffd\ufffd(\ufffd\ufffd\ufffd\ufffd\ufffd 1.0000");
}

TEST(ProgressText, TellsAllWithoutABar) {
  EXPECT_EQ(progress_text(whole()),
            "step 420/1000  epoch 2/5  loss 0.1234  accuracy 0.9125  12.3k rows/s  comm 12%  1:02:03 left");
  EXPECT_EQ(progress_text({.step = 3}), "step 3");
}

TEST(FormatDuration, ReadsLikeAClock) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(7.9), "0:07");
  EXPECT_EQ(format_duration(125), "2:05");
  EXPECT_EQ(format_duration(3599), "59:59");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(360000), "100:00:00");
  EXPECT_EQ(format_duration(-1), "0:00");
  EXPECT_EQ(format_duration(kNaN), "0:00");
  EXPECT_EQ(format_duration(kInfinity), "277777777:46:40");
}

TEST(FormatMeasure, KeepsTheDigitsThatCount) {
  EXPECT_EQ(format_measure(0), "0.0000");
  EXPECT_EQ(format_measure(-0.5), "-0.5000");
  EXPECT_EQ(format_measure(0.001), "0.0010");
  EXPECT_EQ(format_measure(0.0009), "9.000e-04");
  EXPECT_EQ(format_measure(1234.5), "1234.5000");
  EXPECT_EQ(format_measure(123456), "1.235e+05");
}

}  // namespace
}  // namespace tutti
