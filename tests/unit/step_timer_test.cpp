#include "step_timer.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti::bench {
namespace {

TEST(StepTimer, WarmsUpAndThenRepeatsSoManyStepsEachTime) {
  std::vector<std::uint64_t> runs;
  const cli::Timing timing = time_steps(0.01, {{.run = [&](std::uint64_t steps) { runs.push_back(steps); }}}).front();
  ASSERT_EQ(runs.size(), 8u);
  for (std::size_t i = 3; i < runs.size(); ++i) EXPECT_EQ(runs[i], timing.batch);
  EXPECT_EQ(timing.repetitions, 5u);
  EXPECT_GT(timing.median, 0);
}

TEST(StepTimer, DoesAsManyStepsAsTheFirstProcessSays) {
  std::vector<std::uint64_t> runs;
  const cli::Timing timing = time_steps(3600, {{.run = [&](std::uint64_t steps) { runs.push_back(steps); },
                                                .agree = [](std::uint64_t) { return std::uint64_t{7}; }}})
                                 .front();
  EXPECT_EQ(runs, (std::vector<std::uint64_t>{3, 3, 7, 7, 7, 7, 7, 7}));
  EXPECT_EQ(timing.batch, 7u);
}

TEST(StepTimer, DoesOneStepWhereThereIsTimeForNone) {
  const cli::Timing timing = time_steps(0, {{.run = [](std::uint64_t) {}}}).front();
  EXPECT_EQ(timing.batch, 1u);
}

TEST(StepTimer, LetsSeveralTakeTurnsRepetitionByRepetition) {
  std::string order;
  const auto calls = [&](char name) {
    return StepCalls{.run = [&order, name](std::uint64_t) { order += name; },
                     .agree = [](std::uint64_t) { return std::uint64_t{2}; }};
  };
  const std::vector<cli::Timing> timings = time_steps(1, {calls('a'), calls('b'), calls('c')});
  EXPECT_EQ(order,
            "aaabbbccc"
            "abc"
            "abc"
            "abc"
            "abc"
            "abc");
  ASSERT_EQ(timings.size(), 3u);
  for (const cli::Timing& timing : timings) EXPECT_EQ(timing.repetitions, 5u);
}

}  // namespace
}  // namespace tutti::bench
