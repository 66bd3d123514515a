#include <tutti/base/deadline.hpp>

#include <thread>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, PassesWhenItsTimeIsOver) {
  const auto start = Deadline::Clock::now();
  const Deadline deadline = Deadline::after(20ms);
  while (!deadline.passed()) std::this_thread::sleep_for(1ms);
  EXPECT_GE(Deadline::Clock::now() - start, 20ms);
  EXPECT_EQ(deadline.remaining(), Duration::zero());
}

TEST(Deadline, TellsWhatIsLeft) {
  const Deadline deadline = Deadline::after(1h);
  EXPECT_FALSE(deadline.passed());
  EXPECT_LE(deadline.remaining(), 1h);
  EXPECT_GT(deadline.remaining(), 30min);
}

TEST(Deadline, OfNoTimeHasPassed) {
  for (const Duration duration : {Duration::zero(), Duration(-1), Duration(-1h), Duration::min()}) {
    EXPECT_TRUE(Deadline::after(duration).passed()) << duration.count();
    EXPECT_EQ(Deadline::after(duration).remaining(), Duration::zero()) << duration.count();
  }
}

TEST(Deadline, HoldsTheLongestDuration) {
  const Deadline deadline = Deadline::after(Duration::max());
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.remaining(), 24h * 365 * 100);
}

TEST(Duration, IsWrittenInAUnitThatFits) {
  EXPECT_EQ(to_string(0ns), "0 s");
  EXPECT_EQ(to_string(1ns), "0.001 us");
  EXPECT_EQ(to_string(15us), "15 us");
  EXPECT_EQ(to_string(250ms), "250 ms");
  EXPECT_EQ(to_string(1500us), "1.5 ms");
  EXPECT_EQ(to_string(1s), "1 s");
  EXPECT_EQ(to_string(1500ms), "1.5 s");
  EXPECT_EQ(to_string(30s), "30 s");
  EXPECT_EQ(to_string(60s), "1 min");
  EXPECT_EQ(to_string(90s), "90 s");
  EXPECT_EQ(to_string(kDefaultDeadline), "10 min");
  EXPECT_EQ(to_string(24h), "1440 min");
}

TEST(Duration, IsWrittenWithoutExponentHoweverLong) {
  EXPECT_EQ(to_string(1000001s), "1000001 s");
  EXPECT_EQ(to_string(Duration::max()), "9223372037 s");
  EXPECT_EQ(to_string(Duration::min()), "-9223372037 s");
}

TEST(Duration, KeepsItsUnitWhenNegative) {
  EXPECT_EQ(to_string(-2s), "-2 s");
  EXPECT_EQ(to_string(-250ms), "-250 ms");
  EXPECT_EQ(to_string(-60s), "-1 min");
}

}  // namespace
}  // namespace tutti
