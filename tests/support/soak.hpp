// Rounds of whatever comes: random calls, algorithms and lengths, random delays between them, and now and then a rank
// that gets it wrong. The same seed gives the same rounds.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>
#include <tutti/collective.hpp>

#include "support/oracle.hpp"
#include "support/worlds.hpp"

namespace tutti::testing {

inline void delay(RandomStream& draws) {
  switch (draws.below(8)) {
    case 0: std::this_thread::sleep_for(std::chrono::microseconds(draws.below(300))); break;
    case 1: std::this_thread::yield(); break;
    case 2:
      for (std::uint64_t i = draws.below(5000); i > 0; --i) asm volatile("" ::: "memory");
      break;
    default: break;
  }
}

inline void soak(const WorldKind& kind, int ranks, int rounds, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks");
  std::vector<AllReduceStrategy> algorithms = own_all_reduce_strategies();
  if (!kind.shared_memory) std::erase(algorithms, AllReduceStrategy(SharedSlices{}));
  run_world(kind, ranks, [&](Communicator& world) {
    RandomStream common({seed});  // the same on all ranks
    RandomStream own({seed, static_cast<std::uint64_t>(world.rank().value) + 1});
    const int me = world.rank().value;
    for (int round = 0; round < rounds; ++round) {
      const auto draw = static_cast<unsigned>(round);
      const std::size_t length = common.below(common.below(10) == 0 ? 20'000 : 200);
      const AllReduceStrategy algorithm = algorithms[common.below(algorithms.size())];
      const std::uint64_t what = common.below(10);
      delay(own);
      if (what < 6) {
        const ReduceOp op = common.below(2) == 0 ? ReduceOp::sum : ReduceOp::max;
        std::vector<float> data = values_of<float>(me, length, draw);
        all_reduce(world, data, {.algorithm = algorithm, .op = op, .reproducible = common.below(4) == 0});
        ASSERT_EQ(data, reduced<float>(ranks, length, op, draw)) << "round " << round << " " << to_string(algorithm);
      } else if (what < 8) {
        std::vector<float> data = values_of<float>(me, length, draw);
        std::vector<float> other = values_of<float>(me, 50, draw + 1);
        Pending first = start_all_reduce(world, data, {.algorithm = algorithm});
        Pending second = start_all_reduce(world, other);
        delay(own);
        second.wait();
        first.wait();
        ASSERT_EQ(data, reduced<float>(ranks, length, ReduceOp::sum, draw)) << "round " << round;
        ASSERT_EQ(other, reduced<float>(ranks, 50, ReduceOp::sum, draw + 1)) << "round " << round;
      } else if (what == 8) {
        const Rank root{static_cast<int>(common.below(static_cast<std::uint64_t>(ranks)))};
        std::vector<float> data = values_of<float>(me, length, draw);
        broadcast(world, data, {.root = root});
        ASSERT_EQ(data, values_of<float>(root.value, length, draw)) << "round " << round;
      } else {
        // Somebody gets it wrong, and the next round works.
        const bool wrong = me == static_cast<int>(common.below(static_cast<std::uint64_t>(ranks)));
        std::vector<float> data(length + (wrong ? 1 : 0));
        ASSERT_THROW(all_reduce(world, data, {.algorithm = algorithm}), PeerError) << "round " << round;
      }
    }
  });
}

}  // namespace tutti::testing
