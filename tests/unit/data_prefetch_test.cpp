// Things made ahead on a thread: their order, how many, failures, and how it ends.
#include <tutti/data/prefetch.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;

std::string failure_of(Prefetch<int>& things) {
  try {
    (void)things.next();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "(none)";
}

TEST(Prefetch, HandsOutInOrder) {
  for (const std::size_t ahead : {1u, 2u, 4u, 100u}) {
    Prefetch<std::int64_t> things([](std::int64_t number) { return number * number; }, {.ahead = ahead, .first = 3});
    for (std::int64_t i = 3; i < 500; ++i) ASSERT_EQ(things.next(), i * i);
  }
}

TEST(Prefetch, MakesNoMoreAheadThanItMay) {
  std::atomic<int> made = 0;
  Prefetch<int> things([&](std::int64_t) { return ++made; }, {.ahead = 3});
  (void)things.next();
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (made < 4 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(made, 4);
}

TEST(Prefetch, StartsAgainAnywhere) {
  Prefetch<std::int64_t> things([](std::int64_t number) { return number; });
  for (const std::int64_t first : {5, 0, 1'000'000, 5}) {
    things.start_at(first);
    for (std::int64_t i = first; i < first + 20; ++i) ASSERT_EQ(things.next(), i);
  }
}

TEST(Prefetch, RethrowsInPlaceOfWhatCouldNotBeMade) {
  Prefetch<int> things([](std::int64_t number) -> int {
    if (number == 2) throw std::runtime_error("row 2 is bad");
    return static_cast<int>(number);
  });
  EXPECT_EQ(things.next(), 0);
  EXPECT_EQ(things.next(), 1);
  EXPECT_EQ(failure_of(things), "row 2 is bad");
  EXPECT_EQ(failure_of(things), "row 2 is bad");
  things.start_at(3);
  EXPECT_EQ(things.next(), 3);
}

// What is made has been forgotten when it comes; nobody waits for it, nor for its end.
TEST(Prefetch, SaysWhereNothingComesInTimeAndLeavesItsThread) {
  std::promise<void> may_go_on;
  const auto has_begun = std::make_shared<std::promise<void>>();
  const auto has_ended = std::make_shared<std::promise<void>>();
  {
    Prefetch<int> things(
        [go = may_go_on.get_future().share(), has_begun, has_ended](std::int64_t number) {
          if (number == 0) has_begun->set_value();
          go.wait();
          if (number == 0) has_ended->set_value();
          return static_cast<int>(number);
        },
        {.deadline = std::chrono::milliseconds(1)});
    has_begun->get_future().wait();  // a thread that comes up only after the end makes nothing
    EXPECT_EQ(failure_of(things), "the data is late: nothing came within 0 s");
    EXPECT_EQ(failure_of(things), "the data is late: nothing came within 0 s");
  }
  std::future<void> ended = has_ended->get_future();
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  may_go_on.set_value();
  ended.wait();
}

TEST(Prefetch, EndsAtOnceWhateverLiesReady) {
  for (int round = 0; round < 50; ++round) {
    Prefetch<std::unique_ptr<int>> things([](std::int64_t) { return std::make_unique<int>(1); },
                                          {.ahead = 1 + static_cast<std::size_t>(round % 5)});
    for (int i = 0; i < round % 7; ++i) (void)things.next();
  }
  EXPECT_EQ(testing::usage_error([] { Prefetch<int> things([](std::int64_t) { return 1; }, {.ahead = 0}); }),
            "expected at least 1 to be made ahead, found 0");
}

}  // namespace
}  // namespace tutti
