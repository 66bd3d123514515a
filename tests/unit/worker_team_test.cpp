#include <tutti/sync/worker_team.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using namespace std::chrono_literals;

TEST(WorkerTeam, RunsEveryWorkerOnceAndTheFirstOnTheCallersThread) {
  for (int workers : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(workers);
    WorkerTeam team(workers);
    EXPECT_EQ(team.size(), workers);
    std::vector<int> calls(static_cast<std::size_t>(workers));
    std::vector<std::thread::id> threads(calls.size());
    for (int run = 1; run <= 3; ++run) {
      team.run([&](int worker) {
        ++calls[static_cast<std::size_t>(worker)];
        threads[static_cast<std::size_t>(worker)] = std::this_thread::get_id();
      });
      EXPECT_EQ(calls, std::vector<int>(calls.size(), run));
      EXPECT_EQ(threads[0], std::this_thread::get_id());
      EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), threads.size());
    }
  }
}

TEST(WorkerTeam, RunsThemAtTheSameTime) {
  WorkerTeam team(4);
  std::latch all(4);
  team.run([&](int) { all.arrive_and_wait(); });
}

TEST(WorkerTeam, BeginsOnEveryThreadButTheCallers) {
  std::atomic<int> begun = 0;
  const std::thread::id caller = std::this_thread::get_id();
  WorkerTeam team(3, [&] {
    EXPECT_NE(std::this_thread::get_id(), caller);
    ++begun;
  });
  team.run([](int) {});
  EXPECT_EQ(begun, 2);
}

TEST(WorkerTeam, RethrowsWhatTheLowestWorkerThrewWhenAllAreThrough) {
  WorkerTeam team(4);
  for (int lowest : {0, 1, 3}) {
    std::atomic<int> through = 0;
    try {
      team.run([&](int worker) {
        if (worker == 0) std::this_thread::sleep_for(2ms);
        ++through;
        if (worker >= lowest) throw std::runtime_error("worker " + std::to_string(worker));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "worker " + std::to_string(lowest));
    }
    EXPECT_EQ(through, 4);
  }
  std::atomic<int> calls = 0;
  team.run([&](int) { ++calls; });
  EXPECT_EQ(calls, 4);
}

TEST(WorkerTeam, PassesOnWhatIsNoStandardException) {
  WorkerTeam team(2);
  EXPECT_THROW(team.run([](int worker) {
    if (worker == 1) throw 7;  // NOLINT(hicpp-exception-baseclass)
  }),
               int);
}

TEST(WorkerTeam, NamesWhoIsLateInThisCallAndInEveryLaterOne) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  auto ended = std::make_shared<std::latch>(2);
  {
    WorkerTeam team(4);
    std::atomic<int> calls = 0;
    const auto expect_late = [&](const std::function<void(int)>& f) {
      try {
        team.run(f, 20ms);
        ADD_FAILURE() << "nobody was late";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.kind(), FailureKind::late);
        EXPECT_THAT(error.ranks(), ElementsAre(Rank{1}, Rank{3}));
        EXPECT_STREQ(error.what(), "workers 1 and 3 were not through in time");
      }
    };
    expect_late([released, ended](int worker) {
      if (worker % 2 == 0) return;
      released.wait();
      ended->count_down();
    });
    for (int i = 0; i < 3; ++i) expect_late([&](int) { ++calls; });
    EXPECT_EQ(calls, 0);
  }  // the destructor does not wait for them
  release.set_value();
  ended->wait();
}

TEST(WorkerTeam, WaitsForWorkThatTakesItsTimeWithinTheDeadline) {
  WorkerTeam team(3);
  std::atomic<int> through = 0;
  team.run(
      [&](int worker) {
        std::this_thread::sleep_for(worker * 30ms);
        ++through;
      },
      60s);
  EXPECT_EQ(through, 3);
}

TEST(WorkerTeam, ManyShortRunsLoseNoWork) {
  constexpr int kRuns = 5000;
  WorkerTeam team(3);
  std::vector<int> calls(3);
  for (int run = 1; run <= kRuns; ++run) {
    team.run([&](int worker) { ++calls[static_cast<std::size_t>(worker)]; });
    ASSERT_EQ(calls, std::vector<int>(3, run));
  }
}

// Long enough for those that wait to fall asleep, now and then.
TEST(WorkerTeam, RandomDelaysLoseNoWork) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  WorkerTeam team(4);
  std::vector<int> calls(4);
  RandomStream between({kSeed});
  for (int run = 1; run <= 60; ++run) {
    if (between.below(3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(between.below(8000)));
    team.run([&](int worker) {
      RandomStream draws({kSeed, static_cast<std::uint64_t>(run), static_cast<std::uint64_t>(worker)});
      if (draws.below(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draws.below(6000)));
      ++calls[static_cast<std::size_t>(worker)];
    });
    ASSERT_EQ(calls, std::vector<int>(4, run));
  }
}

TEST(WorkerTeam, TeamsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    WorkerTeam team(3);
    std::atomic<int> calls = 0;
    if (i % 2 == 0) {
      team.run([&](int) { ++calls; });
      EXPECT_EQ(calls, 3);
    }
  }
}

TEST(WorkerTeam, RefusesATeamOfNobody) {
  EXPECT_EQ(testing::usage_error([] { WorkerTeam team(0); }), "a team has at least 1 worker, found 0");
}

}  // namespace
}  // namespace tutti
