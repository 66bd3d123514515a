#include <tutti/base/assert.hpp>

#include <cstdint>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Assert, PassesWhatIsTrue) {
  TUTTI_ASSERT(1 + 1 == 2);
  TUTTI_ASSERT_EQ(3, 3);
  TUTTI_ASSERT_LE(3, 3);
  TUTTI_ASSERT_LT(2, 3);
}

TEST(Assert, EvaluatesItsOperandsOnce) {
  int calls = 0;
  TUTTI_ASSERT(++calls == 1);
  TUTTI_ASSERT_EQ(++calls, 2);
  EXPECT_EQ(calls, 2);
}

TEST(Assert, IsOneStatement) {
  if (false)
    TUTTI_ASSERT_EQ(1, 2);
  else
    TUTTI_ASSERT(true);
}

TEST(AssertDeathTest, TellsWhereAndWhatWasExpected) {
  EXPECT_DEATH(TUTTI_ASSERT(1 + 1 == 3),
               "a bug in tutti itself: .*assert_test.cpp:[0-9]+: expected 1 \\+ 1 == 3, have false");
}

TEST(AssertDeathTest, PrintsBothValues) {
  const int length = 4;
  EXPECT_DEATH(TUTTI_ASSERT_EQ(length, 2 + 3), "expected length == 2 \\+ 3, have 4 and 5");
  EXPECT_DEATH(TUTTI_ASSERT_LE(length, 3), "expected length <= 3, have 4 and 3");
  EXPECT_DEATH(TUTTI_ASSERT_LT(length, 4), "expected length < 4, have 4 and 4");
}

TEST(AssertDeathTest, PrintsBytesAsNumbers) {
  const std::uint8_t kind = 7;
  EXPECT_DEATH(TUTTI_ASSERT_EQ(kind, std::uint8_t{65}), "have 7 and 65");
}

}  // namespace
}  // namespace tutti
