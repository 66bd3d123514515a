#include "report/member_table.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::detail {
namespace {

using event::MemberEvaluated;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<MemberEvaluated> four() {
  return {{.member = 0,
           .score = 0.8421,
           .hyper_parameters = {{"optimizer.lr", "0.01"}, {"optimizer.name", R"("sgd")"}, {"units", "65536"}}},
          {.member = 1,
           .score = kNaN,
           .failure = "no memory",
           .hyper_parameters = {{"optimizer.lr", "0.9"}, {"optimizer.name", R"("sgd")"}, {"units", "8"}}},
          {.member = 2, .score = 0.5, .parent = 10, .hyper_parameters = {{"optimizer.lr", "1.23456e-05"}}},
          {.member = 10,
           .score = 0.871234,
           .parent = 0,
           .hyper_parameters = {
               {"optimizer.lr", "0.0130049"}, {"optimizer.name", R"("adam")"}, {"momentum", "0.5"}, {"units", "16"}}}};
}

TEST(MemberTable, HasTheBestFirstAndThoseThatFailedLast) {
  EXPECT_THAT(member_table(four(), true),
              ElementsAre("member  score   from  optimizer.lr  optimizer.name  momentum  units",
                          "    10  0.8712     0  0.013         adam            0.5       16",
                          "     0  0.8421     -  0.01          sgd             -         65536",
                          "     2  0.5       10  1.235e-05     -               -         -",
                          "     1  failed     -  0.9           sgd             -         8"));
}

TEST(MemberTable, HasTheLowestFirstWhereThatIsBetter) {
  const std::vector<std::string> lines = member_table(four(), false);
  ASSERT_THAT(lines, SizeIs(5));
  EXPECT_EQ(lines[1].substr(0, 14), "     2  0.5   ");
  EXPECT_EQ(lines[4].substr(0, 14), "     1  failed");
}

TEST(MemberTable, SaysHowManyItLeavesOut) {
  for (std::int64_t count = 0; count <= 32; ++count) {
    std::vector<MemberEvaluated> members;
    for (std::int64_t i = 0; i < count; ++i) members.push_back({.member = i, .score = 1});
    const std::vector<std::string> lines = member_table(members, true);
    if (count == 0) {
      EXPECT_THAT(lines, IsEmpty());
    } else if (count <= 20) {
      EXPECT_THAT(lines, SizeIs(static_cast<std::size_t>(count) + 1));
    } else {
      ASSERT_THAT(lines, SizeIs(22));
      EXPECT_EQ(lines[1], "     0  1         -") << "of those that are alike, the first";
      EXPECT_EQ(lines[21], "and " + std::to_string(count - 20) + " more");
    }
  }
}

TEST(MemberTable, StaysAlignedWhateverValuesHold) {
  EXPECT_THAT(member_table({{.member = 0,
                             .score = 1,
                             .hyper_parameters = {{"größe\n", R"("a\u001bb")"},
                                                  {"list", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"},
                                                  {"c", "not JSON"},
                                                  {"is_on", "true"}}}},
                           true),
              ElementsAre("member  score  from  größe   list                      c         is_on",
                          "     0  1         -  a b     [1, 2, 3, 4, 5, 6, 7, 8,  not JSON  true"));
}

}  // namespace
}  // namespace tutti::detail
