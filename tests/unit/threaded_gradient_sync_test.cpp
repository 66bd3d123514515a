#include <tutti/sync/threaded_gradient_sync.hpp>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(LocalGradientSync, LeavesGradientsAlone) {
  LocalGradientSync sync;
  std::vector<float> gradients{1, 2};
  sync.sync_gradients(gradients);
  EXPECT_THAT(gradients, ElementsAre(1, 2));
  EXPECT_FALSE(sync.is_distributed());
  EXPECT_EQ(sync.num_workers(), 1);
}

TEST(ThreadedGradientSync, GivesHandlesInOrder) {
  const std::vector<ThreadedGradientSync> workers = ThreadedGradientSync::new_workers(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(workers[static_cast<std::size_t>(i)].worker_id(), i);
    EXPECT_EQ(workers[static_cast<std::size_t>(i)].num_workers(), 3);
    EXPECT_TRUE(workers[static_cast<std::size_t>(i)].is_distributed());
  }
  EXPECT_THROW(ThreadedGradientSync::new_workers(0), UsageError);
  EXPECT_THROW(ThreadedGradientSync::new_workers(-1), UsageError);
}

TEST(ThreadedGradientSync, SyncsToTheMeanRoundAfterRound) {
  std::vector<ThreadedGradientSync> workers = ThreadedGradientSync::new_workers(2);
  const auto work = [](ThreadedGradientSync& sync, std::vector<float> own) {
    for (int round = 0; round < 100; ++round) {
      std::vector<float> gradients = own;
      sync.sync_gradients(gradients);
      ASSERT_THAT(gradients, ElementsAre(3, 6));
    }
  };
  const std::jthread first([&] { work(workers[0], {2, 4}); });
  const std::jthread second([&] { work(workers[1], {4, 8}); });
}

TEST(ThreadedGradientSync, ADestroyedHandleEndsTheOthersWait) {
  std::vector<ThreadedGradientSync> workers = ThreadedGradientSync::new_workers(3);
  ThreadedGradientSync last = std::move(workers.back());
  workers.pop_back();
  std::vector<std::jthread> threads;
  for (ThreadedGradientSync& sync : workers) {
    threads.emplace_back([&sync] {
      std::vector<float> gradients{static_cast<float>(sync.worker_id())};
      try {
        sync.sync_gradients(gradients);
        ADD_FAILURE() << "no error";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.ranks(), std::vector{Rank{2}}) << error.what();
      }
      gradients[0] = static_cast<float>(sync.worker_id());
      sync.sync_gradients(gradients);
      EXPECT_EQ(gradients[0], 0.5f);
    });
  }
  { const ThreadedGradientSync destroyed = std::move(last); }
}

// What the first to come and the last one bring is folded in the same order.
TEST(ThreadedGradientSync, BitsDoNotDependOnWhoComesFirst) {
  const auto round = [](std::uint64_t seed) {
    return run_parallel_workers(5, [seed](ThreadedGradientSync& sync) {
      const auto me = static_cast<std::uint64_t>(sync.worker_id());
      RandomStream values({7, me});
      RandomStream delays({seed, me});
      std::vector<float> gradients(1001);
      for (float& gradient : gradients) gradient = static_cast<float>(values.uniform()) - 0.5f;
      std::this_thread::sleep_for(std::chrono::microseconds(delays.below(500)));
      sync.sync_gradients(gradients);
      return gradients;
    });
  };
  const auto first = round(0);
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const auto again = round(seed);
    for (const auto& gradients : again) ASSERT_EQ(gradients, first[0]);
  }
}

TEST(RunParallelWorkers, ReturnsWhatEachReturned) {
  EXPECT_THAT(run_parallel_workers(3, [](ThreadedGradientSync& sync) { return 10 * sync.worker_id(); }),
              ElementsAre(0, 10, 20));
  std::atomic<int> sum = 0;
  run_parallel_workers(4, [&](ThreadedGradientSync& sync) { sum += sync.worker_id(); });
  EXPECT_EQ(sum, 6);
  EXPECT_THROW(run_parallel_workers(0, [](ThreadedGradientSync&) {}), UsageError);
}

TEST(RunParallelWorkers, RethrowsWhatOneThrewAndTellsTheOthers) {
  std::atomic<int> told = 0;
  const auto work = [&](ThreadedGradientSync& sync) {
    std::vector<float> gradients(10);
    for (int step = 0; step < 5; ++step) {
      if (sync.worker_id() == 1 && step == 3) throw std::runtime_error("boom");
      try {
        sync.sync_gradients(gradients);
      } catch (const PeerError& error) {
        EXPECT_EQ(error.ranks(), std::vector{Rank{1}});
        EXPECT_THAT(error.what(), HasSubstr("boom"));
        ++told;
        throw;
      }
    }
  };
  EXPECT_THROW(
      {
        try {
          run_parallel_workers(4, work);
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "boom");
          throw;
        }
      },
      std::runtime_error);
  EXPECT_EQ(told, 3);
}

// Fewer batches in some: whoever goes on does so with those who are left, down to one.
TEST(RunParallelWorkers, GoesOnUntilTheLastHasNoMoreBatches) {
  const std::vector<int> rounds = run_parallel_workers(4, [](ThreadedGradientSync& sync) {
    int done = 0;
    for (int batch = 0; batch < 3 * (sync.worker_id() + 1); ++batch) {
      std::vector<float> gradients{1};
      for (;;) {
        try {
          sync.sync_gradients(gradients);
          break;
        } catch (const PeerError& error) {
          EXPECT_EQ(error.kind(), FailureKind::lost);
          gradients = {1};
        }
      }
      EXPECT_EQ(gradients[0], 1.0f);
      ++done;
    }
    return done;
  });
  EXPECT_THAT(rounds, ElementsAre(3, 6, 9, 12));
}

// Rounds of random lengths with random delays, in which now and then somebody gets it wrong.
TEST(RunParallelWorkers, ManyRandomRounds) {
  run_parallel_workers(4, [](ThreadedGradientSync& sync) {
    RandomStream common({1});
    RandomStream own({2, static_cast<std::uint64_t>(sync.worker_id())});
    for (int round = 0; round < 1000; ++round) {
      const std::size_t length = common.below(common.below(20) == 0 ? 50'000 : 100);
      const bool fails = common.below(10) == 0;
      const auto wrong = static_cast<int>(common.below(4));
      if (own.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own.below(100)));
      std::vector<float> gradients(length + (fails && wrong == sync.worker_id() ? 1 : 0),
                                   static_cast<float>(sync.worker_id()));
      if (fails) {
        ASSERT_THROW(sync.sync_gradients(gradients), PeerError) << "round " << round;
        continue;
      }
      sync.sync_gradients(gradients);
      for (float gradient : gradients) ASSERT_EQ(gradient, 1.5f) << "round " << round;
    }
  });
}

}  // namespace
}  // namespace tutti
