#include "cli/arguments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tutti/base/error.hpp>

namespace tutti::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Arguments, AListIsCutAtItsCommas) {
  EXPECT_THAT(parse_list("--x", "a"), ElementsAre("a"));
  EXPECT_THAT(parse_list("--x", "a,b,c"), ElementsAre("a", "b", "c"));
}

TEST(Arguments, AnEmptyEntryIsRefusedByTheNameOfTheOption) {
  for (const char* text : {"", ",", "a,", ",a", "a,,b"})
    EXPECT_THAT([&] { parse_list("--x", text); }, ThrowsMessage<UsageError>(HasSubstr("--x: "))) << text;
}

TEST(Arguments, RanksAreWholeNumbersFromOneUp) {
  EXPECT_THAT(parse_ranks("--ranks", "1,2,1024"), ElementsAre(1, 2, 1024));
  for (const char* text : {"0", "-1", "1025", "2.5", "2x", "x", "99999999999999999999", " 2"})
    EXPECT_THAT([&] { parse_ranks("--ranks", text); }, ThrowsMessage<UsageError>(HasSubstr("--ranks: "))) << text;
}

TEST(Arguments, SizesAreReadAndJoinedAgain) {
  const std::vector<Bytes> sizes = parse_sizes("--bytes", "1KiB,4M,7");
  EXPECT_THAT(sizes, ElementsAre(Bytes{1024}, Bytes{4 << 20}, Bytes{7}));
  EXPECT_EQ(join_sizes(sizes), "1024,4194304,7");
  EXPECT_THAT([] { parse_sizes("--bytes", "1KiB,ten"); }, ThrowsMessage<UsageError>(HasSubstr("--bytes: 'ten'")));
}

TEST(Arguments, AChoiceIsOneOfItsNames) {
  const std::vector<std::string_view> names{"Sum", "Mean"};
  EXPECT_EQ(parse_choice("--op", "Mean", names), 1u);
  EXPECT_THAT([&] { parse_choice("--op", "Sun", names); },
              ThrowsMessage<UsageError>("--op: expected Sum, Mean, found 'Sun'; did you mean 'Sum'?"));
}

}  // namespace
}  // namespace tutti::cli
