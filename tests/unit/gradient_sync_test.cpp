// Rounds of a CollectiveGradientSync, over every kind of world.
#include <tutti/sync/collective_gradient_sync.hpp>

#include <latch>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class GradientSyncOver : public ::testing::TestWithParam<WorldKind> {
 protected:
  // f(sync), on each of the workers.
  template <typename F>
  void run(int workers, F f, const CollectiveGradientSyncOptions& options = {}, Duration deadline = 60s) const {
    run_world(GetParam(), workers,
              [&](Communicator& world) {
                CollectiveGradientSync sync(std::move(world), options);
                f(sync);
              },
              {.deadline = deadline});
  }
};

// Worker w brings w + 1 of everything.
std::vector<float> gradients_of(const CollectiveGradientSync& sync, std::size_t length = 3) {
  return std::vector<float>(length, static_cast<float>(sync.worker_id() + 1));
}

Failure failure_of(CollectiveGradientSync& sync, Array gradients) {
  try {
    sync.sync_gradients(gradients);
  } catch (const PeerError& error) {
    return error.failure();
  }
  ADD_FAILURE() << "worker " << sync.worker_id() << " heard nothing";
  return {};
}

// The next round works, among those who are left.
void expect_mean(CollectiveGradientSync& sync, float mean) {
  std::vector<float> gradients = gradients_of(sync);
  sync.sync_gradients(gradients);
  EXPECT_THAT(gradients, ElementsAre(mean, mean, mean)) << "worker " << sync.worker_id();
}

INSTANTIATE_TEST_SUITE_P(Worlds, GradientSyncOver, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(GradientSyncOver, GivesAllTheMean) {
  for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Centralized{}),
                                             AllReduceStrategy(Tree{2}), AllReduceStrategy(Ring{})}) {
    run(2,
        [](CollectiveGradientSync& sync) {
          EXPECT_TRUE(sync.is_distributed());
          EXPECT_EQ(sync.num_workers(), 2);
          for (int round = 0; round < 5; ++round) {
            std::vector<double> gradients =
                sync.worker_id() == 0 ? std::vector<double>{2, 4} : std::vector<double>{4, 8};
            sync.sync_gradients(gradients);
            EXPECT_THAT(gradients, ElementsAre(3, 6));
          }
        },
        {.algorithm = algorithm});
  }
}

TEST_P(GradientSyncOver, AWorkerAloneKeepsItsGradients) {
  run(1, [](CollectiveGradientSync& sync) {
    EXPECT_FALSE(sync.is_distributed());
    expect_mean(sync, 1);
  });
}

TEST_P(GradientSyncOver, ARoundWithAnotherLengthFailsForAllAndTheNextWorks) {
  run(3, [](CollectiveGradientSync& sync) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> gradients = gradients_of(sync, sync.worker_id() == 1 ? 4 : 3);
      const std::vector<float> before = gradients;
      const Failure failure = failure_of(sync, gradients);
      EXPECT_EQ(failure.kind, FailureKind::disagreement);
      EXPECT_THAT(failure.message, HasSubstr("length 3 on ranks 0 and 2, 4 on rank 1"));
      EXPECT_EQ(gradients, before);
      expect_mean(sync, 2);
    }
  });
}

TEST_P(GradientSyncOver, WhoLeavesIsNamedAndTheOthersGoOn) {
  run(4, [](CollectiveGradientSync& sync) {
    expect_mean(sync, 2.5);
    if (sync.worker_id() == 1) return sync.leave("has no more batches");
    std::vector<float> gradients = gradients_of(sync);
    Failure failure = failure_of(sync, gradients);
    EXPECT_EQ(failure.kind, FailureKind::lost);
    EXPECT_EQ(failure.ranks, std::vector{Rank{1}});
    EXPECT_THAT(failure.message, HasSubstr("has no more batches"));
    EXPECT_EQ(sync.num_workers(), 4) << "until the next round, that is";
    expect_mean(sync, 8.0f / 3);
    EXPECT_EQ(sync.num_workers(), 3);
    // By the number that it had at the beginning.
    if (sync.worker_id() == 2) return sync.leave("has enough");
    gradients = gradients_of(sync);
    failure = failure_of(sync, gradients);
    EXPECT_EQ(failure.ranks, std::vector{Rank{2}});
    EXPECT_THAT(failure.message, HasSubstr("rank 1 is worker 2")) << sync.worker_id();
    expect_mean(sync, 2.5);
    expect_mean(sync, 2.5);
  });
}

TEST_P(GradientSyncOver, SeveralMayLeaveAtOnce) {
  run(5, [](CollectiveGradientSync& sync) {
    expect_mean(sync, 3);
    if (sync.worker_id() == 0 || sync.worker_id() == 3) return;
    // One after the other is noticed, or both at once.
    int failed = 0;
    for (;; ++failed) {
      std::vector<float> gradients = gradients_of(sync);
      try {
        sync.sync_gradients(gradients);
        EXPECT_THAT(gradients, ElementsAre(10.0f / 3, 10.0f / 3, 10.0f / 3));
        break;
      } catch (const PeerError& error) {
        ASSERT_LT(failed, 2) << error.what();
        for (Rank rank : error.ranks()) EXPECT_TRUE(rank == Rank{0} || rank == Rank{3}) << error.what();
      }
    }
    EXPECT_GE(failed, 1);
    EXPECT_EQ(sync.num_workers(), 3);
  });
}

TEST_P(GradientSyncOver, WhoIsLateIsNamedAndComesAgain) {
  std::latch told(2);
  run(
      3,
      [&](CollectiveGradientSync& sync) {
        std::vector<float> gradients = gradients_of(sync);
        if (sync.worker_id() == 2) told.wait();
        const Failure failure = failure_of(sync, gradients);
        EXPECT_EQ(failure.kind, FailureKind::late) << failure.message;
        EXPECT_THAT(failure.ranks, ::testing::Contains(Rank{2})) << failure.message;
        if (sync.worker_id() != 2) told.count_down();
        expect_mean(sync, 2);
        EXPECT_EQ(sync.num_workers(), 3);
      },
      {}, 2s);
}

TEST_P(GradientSyncOver, ReduceToRootGivesTheMeanToOne) {
  run(3,
      [](CollectiveGradientSync& sync) {
        const auto own = static_cast<float>(sync.worker_id() + 1);
        expect_mean(sync, sync.worker_id() == 1 ? 2 : own);
        // Where the root is gone, the first of those left is.
        if (sync.worker_id() == 1) return;
        std::vector<float> gradients = gradients_of(sync);
        EXPECT_EQ(failure_of(sync, gradients).ranks, std::vector{Rank{1}});
        expect_mean(sync, sync.worker_id() == 0 ? 2 : own);
      },
      {.strategy = SyncStrategy::reduce_to_root, .root = Rank{1}});
}

TEST_P(GradientSyncOver, NoSyncWaitsForNobody) {
  run(2,
      [](CollectiveGradientSync& sync) {
        if (sync.worker_id() == 1) expect_mean(sync, 2);
      },
      {.strategy = SyncStrategy::no_sync});
}

// Rounds with random delays, for the thread sanitizer above all: everybody gets the same, whatever travelled.
TEST_P(GradientSyncOver, ManyRoundsWithRandomDelaysGiveAllTheSame) {
  constexpr int kWorkers = 3;
  constexpr int kRounds = 60;
  for (const Compression& compression : compressions()) {
    SCOPED_TRACE(to_string(compression));
    std::vector<std::vector<std::vector<float>>> results(kWorkers);
    run(kWorkers,
        [&](CollectiveGradientSync& sync) {
          const auto me = static_cast<std::uint64_t>(sync.worker_id());
          GradientBuffers gradients({{"weight", {16, 9}}, {"bias", {5}}}, DataType::float32);
          const Array all = gradients.all();
          const std::span values(reinterpret_cast<float*>(all.data()), all.length());
          for (std::uint64_t round = 0; round < kRounds; ++round) {
            RandomStream draws({11, me, round});
            for (float& value : values) value = static_cast<float>(draws.below(1000)) - 500;
            if (draws.below(3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draws.below(300)));
            sync.sync_buffers(gradients);
            results[me].emplace_back(values.begin(), values.end());
          }
        },
        {.algorithm = Ring{}, .compression = compression});
    for (const auto& its : results) {
      ASSERT_EQ(its.size(), std::size_t{kRounds});
      EXPECT_EQ(its, results.front());
    }
  }
}

TEST_P(GradientSyncOver, RefusesARootThatIsNoWorkerAndACommunicatorThatIsNone) {
  run_world(GetParam(), 1, [](Communicator& world) {
    Communicator own = std::move(world);
    EXPECT_THROW(CollectiveGradientSync{std::move(world)}, UsageError);
    EXPECT_THROW((CollectiveGradientSync{std::move(own), {.root = Rank{1}}}), UsageError);
  });
}

}  // namespace
}  // namespace tutti::testing
