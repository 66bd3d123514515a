// Servers of 1 to 8 workers of random speeds: nobody is farther ahead than it may be, nothing is lost, and who dies
// holds nobody back.
#include <tutti/coordinate/parameter_server.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/one_array.hpp"
#include "support/scripted_rules.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using strategy::Consistency;
using testing::doubles;
using testing::numbers_of;
using testing::RememberingRule;

// As if it computed: some workers are slow, and all of them now and then.
void compute(RandomStream& draws, std::uint64_t slowness) {
  for (std::uint64_t i = draws.below(1 + slowness); i > 0; --i) {
    std::this_thread::yield();
    for (std::uint64_t spin = draws.below(300); spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

// What a worker had done when it got the parameters of a version.
struct Pull {
  std::int64_t version;
  std::int64_t clock;
};

TEST(ParameterServerProperty, NobodyIsMoreThanSClocksAhead) {
  for (std::int64_t s = 0; s <= 5; ++s) {
    for (int workers = 1; workers <= 8; ++workers) {
      SCOPED_TRACE("s " + std::to_string(s) + ", workers " + std::to_string(workers));
      auto owned = std::make_unique<RememberingRule>();
      const RememberingRule& rule = *owned;
      ParameterServer server(std::move(owned), workers,
                             {.consistency = Consistency::bounded_staleness, .max_staleness = s});
      server.set_model_parameters(doubles({0}));
      std::vector<std::vector<Pull>> pulls(static_cast<std::size_t>(workers));
      std::vector<std::int64_t> pushes(static_cast<std::size_t>(workers));
      std::vector<std::jthread> threads;
      for (int worker = 0; worker < workers; ++worker) {
        const auto w = static_cast<std::size_t>(worker);
        pushes[w] = 10 + static_cast<std::int64_t>(RandomStream({static_cast<std::uint64_t>(worker)}).below(20));
        threads.emplace_back([&, worker, w] {
          RandomStream draws({static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(workers), w});
          const std::uint64_t slowness = draws.below(3) == 0 ? 40 : 2;
          for (std::int64_t clock = 0; clock < pushes[w]; ++clock) {
            const ModelSnapshot now = server.pull(worker);
            pulls[w].push_back({now.version, clock});
            compute(draws, slowness);
            server.push(worker, doubles({static_cast<double>(worker)}), {.base = now});
          }
          server.leave(worker);
        });
      }
      threads.clear();
      // Each version is one push: the rule remembers whose.
      std::vector<std::vector<std::int64_t>> clocks_at(1, std::vector<std::int64_t>(static_cast<std::size_t>(workers)));
      for (const double worker : rule.seen) {
        clocks_at.push_back(clocks_at.back());
        ++clocks_at.back()[static_cast<std::size_t>(worker)];
      }
      EXPECT_EQ(clocks_at.back(), pushes);
      for (std::size_t w = 0; w < pulls.size(); ++w) {
        for (const Pull& pull : pulls[w]) {
          const std::vector<std::int64_t>& clocks = clocks_at[static_cast<std::size_t>(pull.version)];
          EXPECT_EQ(clocks[w], pull.clock);
          for (std::size_t other = 0; other < clocks.size(); ++other) {
            // One that has pushed all that it had has left.
            ASSERT_TRUE(pull.clock - clocks[other] <= s || clocks[other] == pushes[other])
                << "worker " << w << " was at " << pull.clock << ", worker " << other << " at " << clocks[other];
          }
        }
      }
    }
  }
}

// Counts the clocks of workers, which the first number of gradients names, and how many somebody was ahead of the
// slowest when its gradients began to change the model.
class WatchingRule : public UpdateRule {
 public:
  explicit WatchingRule(int workers) : clocks_(static_cast<std::size_t>(workers)) {}

  void apply(ParameterSet&, const ParameterSet& gradients, const UpdateStep&) override {
    std::int64_t& its = clocks_[static_cast<std::size_t>(gradients[0].values<double>()[0])];
    most_ahead = std::max(most_ahead, its - std::ranges::min(clocks_));
    ++its;
  }

  std::int64_t most_ahead = 0;

 private:
  std::vector<std::int64_t> clocks_;
};

// Some of the workers pull before they push, some now and then, and some never; one more thread looks at the clocks all
// the time. All go on until all have done what they had to, so that everybody is there for as long as is looked.
TEST(ParameterServerProperty, ClocksAreNeverMoreThanSPlusOneApart) {
  for (const std::int64_t s : {0, 1, 3}) {
    for (const int workers : {1, 2, 4}) {
      SCOPED_TRACE("s " + std::to_string(s) + ", workers " + std::to_string(workers));
      const std::vector<std::int64_t> pushes(static_cast<std::size_t>(workers), 20);
      auto owned = std::make_unique<WatchingRule>(workers);
      const WatchingRule& rule = *owned;
      ParameterServer server(std::move(owned), workers,
                             {.consistency = Consistency::bounded_staleness, .max_staleness = s});
      server.set_model_parameters(doubles({0}));
      std::atomic<bool> is_over = false;
      std::int64_t farthest = 0;
      std::jthread looks([&] {
        while (!is_over) {
          const auto [slowest, fastest] = std::ranges::minmax(server.clocks());
          farthest = std::max(farthest, fastest - slowest);
          std::this_thread::yield();
        }
      });
      std::vector<std::jthread> threads;
      for (int worker = 0; worker < workers; ++worker) {
        threads.emplace_back([&, worker] {
          RandomStream draws(
              {static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(workers), static_cast<std::uint64_t>(worker)});
          const std::uint64_t pulls = draws.below(3);
          const std::uint64_t slowness = draws.below(3) == 0 ? 20 : 2;
          for (std::int64_t clock = 0; clock < pushes[0]; ++clock) {
            if (pulls == 0 || (pulls == 1 && draws.below(3) == 0)) (void)server.pull(worker);
            compute(draws, slowness);
            server.push(worker, doubles({static_cast<double>(worker)}));
          }
        });
      }
      threads.clear();
      is_over = true;
      looks.join();
      EXPECT_LE(farthest, s + 1);
      EXPECT_LE(rule.most_ahead, s);
      EXPECT_EQ(server.clocks(), pushes);
    }
  }
}

// Threads that push for one worker at the same time do not come farther together than one of them could.
TEST(ParameterServerProperty, SeveralThreadsOfAWorkerAreOne) {
  for (std::int64_t s = 0; s <= 2; ++s) {
    ParameterServer server(Sgd{.lr = 1}, 2, {.consistency = Consistency::bounded_staleness, .max_staleness = s});
    server.set_model_parameters(doubles({0}));
    constexpr std::int64_t kEach = 20;
    std::atomic<bool> is_over = false;
    std::int64_t farthest = 0;
    std::jthread looks([&] {
      while (!is_over) {
        const std::vector<std::int64_t> clocks = server.clocks();
        farthest = std::max(farthest, clocks[0] - clocks[1]);
        std::this_thread::yield();
      }
    });
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&] {
        for (std::int64_t i = 0; i < kEach; ++i) server.push(0, doubles({1}));
      });
    }
    threads.emplace_back([&] {
      RandomStream draws({static_cast<std::uint64_t>(s)});
      for (std::int64_t i = 0; i < 3 * kEach; ++i) {
        compute(draws, 3);
        server.push(1, doubles({1}));
      }
    });
    threads.clear();
    is_over = true;
    looks.join();
    EXPECT_LE(farthest, s + 1);
    EXPECT_EQ(numbers_of(server.get_model_parameters())[0], -static_cast<double>(6 * kEach));
  }
}

TEST(ParameterServerProperty, LosesNoneWhereItIsAsynchronous) {
  for (int workers = 1; workers <= 8; ++workers) {
    ParameterServer server(Sgd{.lr = 1}, workers);
    const auto pushes = static_cast<std::int64_t>(48 / workers);
    server.set_model_parameters(doubles(std::vector<double>(static_cast<std::size_t>(workers))));
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&, worker] {
        RandomStream draws({static_cast<std::uint64_t>(worker)});
        for (std::int64_t i = 0; i < pushes; ++i) {
          const ModelSnapshot now = server.pull(worker);
          // Its own are all there.
          ASSERT_EQ(-numbers_of(*now.parameters)[static_cast<std::size_t>(worker)],
                    static_cast<double>((std::int64_t{1} << i) - 1));
          compute(draws, 5);
          std::vector<double> gradients(static_cast<std::size_t>(workers));
          gradients[static_cast<std::size_t>(worker)] = static_cast<double>(std::int64_t{1} << i);
          server.push(worker, doubles(gradients), {.base = now});
        }
      });
    }
    threads.clear();
    EXPECT_THAT(numbers_of(server.get_model_parameters()),
                ::testing::Each(-static_cast<double>((std::int64_t{1} << pushes) - 1)));
    EXPECT_EQ(server.version(), workers * pushes);
    std::int64_t counted = 0;
    for (const auto& [staleness, count] : server.staleness()) counted += count;
    EXPECT_EQ(counted, workers * pushes);
  }
}

// Some workers say nothing any more at a random moment; the others make all their steps, and what was taken counts.
TEST(ParameterServerProperty, NobodyIsHeldBackByTheDead) {
  for (const Consistency consistency : {Consistency::synchronous, Consistency::bounded_staleness}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      constexpr int kWorkers = 4;
      constexpr int kSteps = 20;
      ParameterServer server(Sgd{.lr = 1}, kWorkers,
                             {.consistency = consistency, .max_staleness = 1, .heartbeat = 5ms});
      server.set_model_parameters(doubles({0}));
      std::atomic<int> taken = 0;
      std::vector<std::jthread> threads;
      for (int worker = 0; worker < kWorkers; ++worker) {
        threads.emplace_back([&, worker] {
          RandomStream draws({seed, static_cast<std::uint64_t>(worker)});
          const int steps = worker < 2 ? static_cast<int>(draws.below(kSteps)) : kSteps;
          for (int done = 0; done < steps;) {
            try {
              const ModelSnapshot now = server.pull(worker);
              compute(draws, 3);
              server.push(worker, doubles({1}), {.base = now});
              ++taken;
              ++done;
            } catch (const Error&) {  // a slow machine: it was taken for dead, though it only slept
              server.join(worker);
            }
          }
          if (worker < 2) return;
          while (true) {  // until its last gradients are applied
            try {
              (void)server.pull(worker);
              break;
            } catch (const Error&) {
              server.join(worker);
            }
          }
          server.leave(worker);
        });
      }
      threads.clear();
      if (consistency == Consistency::bounded_staleness) {
        EXPECT_EQ(numbers_of(server.get_model_parameters())[0], -taken);
      } else {
        // Rounds with the dead, and rounds without them: at least as many as who lived had steps.
        EXPECT_GE(server.version(), kSteps);
        EXPECT_EQ(numbers_of(server.get_model_parameters())[0], -static_cast<double>(server.version()));
      }
    }
  }
}

}  // namespace
}  // namespace tutti
