// Every call against a naive oracle on exact whole numbers: worlds x ranks x lengths x algorithms x operations x types.
#include <tutti/collective.hpp>

#include <bit>
#include <set>

#include <gtest/gtest.h>
#include <tutti/base/chunk.hpp>

#include "support/oracle.hpp"
#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};

std::vector<std::size_t> lengths_for(int ranks) {
  const auto p = static_cast<std::size_t>(ranks);
  const std::set<std::size_t> lengths{0, 1, p - 1, p, p + 1, 5, 6, 7, 9, 1000, 20011};
  return {lengths.begin(), lengths.end()};
}

std::vector<AllReduceStrategy> algorithms_for(const WorldKind& kind) {
  std::vector<AllReduceStrategy> algorithms = own_all_reduce_strategies();
  algorithms.insert(algorithms.end(), {Tree{1}, Tree{3}, Tree{100}});
  if (!kind.shared_memory) std::erase(algorithms, AllReduceStrategy(SharedSlices{}));
  return algorithms;
}

class Collectives : public ::testing::TestWithParam<WorldKind> {
 protected:
  void run(int ranks, const std::function<void(Communicator&)>& f) const { run_world(GetParam(), ranks, f); }

  // f(world, T{}, length, seed, sample), for all element types and lengths; the sample says which of the
  // points there to go over.
  template <typename F>
  void for_each_case(F f) const {
    for (int ranks : GetParam().ranks) {
      run(ranks, [&](Communicator& world) {
        unsigned seed = 0;
        Sample sample(GetParam().every);
        for (std::size_t length : lengths_for(ranks)) {
          for (DataType type : kAllDataTypes) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, length " + std::to_string(length) + ", " +
                         std::string(to_string(type)));
            dispatch(type, [&]<typename T>(std::type_identity<T>) { f(world, T{}, length, ++seed, sample); });
          }
        }
      });
    }
  }

  std::vector<AllReduceStrategy> algorithms() const { return algorithms_for(GetParam()); }

  // Those that reduce to a root and broadcast from one.
  std::vector<AllReduceStrategy> rooted_algorithms() const {
    std::vector<AllReduceStrategy> rooted = algorithms();
    std::erase(rooted, AllReduceStrategy(RecursiveDoubling{}));
    std::erase(rooted, AllReduceStrategy(HalvingDoubling{}));
    return rooted;
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(Collectives, AllReduceGivesEveryRankTheReduction) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    const std::vector<T> mine = values_of<T>(world.rank().value, length, seed);
    for (ReduceOp op : kOps) {
      if (op == ReduceOp::mean && !is_floating(data_type_of<T>)) continue;
      const std::vector<T> expected = reduced<T>(world.size(), length, op, seed);
      for (const AllReduceStrategy& algorithm : algorithms()) {
        for (bool reproducible : {false, true}) {
          if (!sample.takes()) continue;
          std::vector<T> data = mine;
          all_reduce(world, data, {.algorithm = algorithm, .op = op, .reproducible = reproducible});
          ASSERT_EQ(data, expected) << to_string(algorithm) << " " << to_string(op)
                                    << (reproducible ? " reproducible" : "");
        }
      }
    }
  });
}

TEST_P(Collectives, ReduceGivesTheRootTheReductionAndLeavesTheOthersAlone) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    const Rank root{static_cast<int>(seed) % world.size()};
    const std::vector<T> mine = values_of<T>(world.rank().value, length, seed);
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      const std::vector<T> expected = world.rank() == root ? reduced<T>(world.size(), length, op, seed) : mine;
      for (const AllReduceStrategy& algorithm : rooted_algorithms()) {
        for (bool reproducible : {false, true}) {
          if (!sample.takes()) continue;
          std::vector<T> data = mine;
          reduce(world, data, {.root = root, .algorithm = algorithm, .op = op, .reproducible = reproducible});
          ASSERT_EQ(data, expected) << to_string(algorithm) << " " << to_string(op) << " to " << to_string(root);
        }
      }
    }
  });
}

TEST_P(Collectives, BroadcastGivesEveryRankTheRootsData) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    const Rank root{static_cast<int>(seed) % world.size()};
    const BroadcastRole role = world.rank() == root ? BroadcastRole::source : BroadcastRole::sink;
    const std::vector<T> mine = values_of<T>(world.rank().value, length, seed);
    const std::vector<T> expected = values_of<T>(root.value, length, seed);
    for (const AllReduceStrategy& algorithm : rooted_algorithms()) {
      for (bool by_role : {false, true}) {
        if (!sample.takes()) continue;
        std::vector<T> data = mine;
        if (by_role) {
          broadcast(world, data, {.role = role, .algorithm = algorithm});
        } else {
          broadcast(world, data, {.root = root, .algorithm = algorithm});
        }
        ASSERT_EQ(data, expected) << to_string(algorithm) << " from " << to_string(root);
      }
    }
  });
}

TEST_P(Collectives, AllGatherGivesEveryRankEverybodysPart) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    if (!sample.takes()) return;
    std::vector<T> expected;
    for (Rank rank : all_ranks(world.size())) {
      const std::vector<T> part = values_of<T>(rank.value, length, seed);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const std::vector<T> mine = values_of<T>(world.rank().value, length, seed);
    std::vector<T> all(expected.size());
    all_gather(world, mine, all);
    ASSERT_EQ(all, expected);

    std::vector<T> in_place(expected.size());
    const std::span<T> place =
        std::span(in_place).subspan(static_cast<std::size_t>(world.rank().value) * length, length);
    std::ranges::copy(mine, place.begin());
    all_gather(world, place, in_place);
    ASSERT_EQ(in_place, expected);
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsChunkOfTheReduction) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    for (ReduceOp op : kOps) {
      if (op == ReduceOp::mean && !is_floating(data_type_of<T>)) continue;
      for (bool reproducible : {false, true}) {
        if (!sample.takes()) continue;
        const Slice slice = chunk(length, world.size(), world.rank().value);
        const std::vector<T> data = values_of<T>(world.rank().value, length, seed);
        std::vector<T> mine(slice.count);
        reduce_scatter(world, data, mine, {.op = op, .reproducible = reproducible});
        ASSERT_EQ(mine, reduced<T>(world.size(), slice.count, op, seed, slice.first)) << to_string(op);
        ASSERT_EQ(data, values_of<T>(world.rank().value, length, seed)) << "the source was touched";
      }
    }
  });
}

TEST_P(Collectives, GatherAndScatterMovePartsToAndFromTheRoot) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    if (!sample.takes()) return;
    const Rank root{static_cast<int>(seed) % world.size()};
    const bool is_root = world.rank() == root;
    const std::vector<T> mine = values_of<T>(world.rank().value, length, seed);
    std::vector<T> all(is_root ? length * static_cast<std::size_t>(world.size()) : 0);
    gather(world, mine, all, {.root = root});
    if (is_root) {
      for (Rank rank : all_ranks(world.size())) {
        const std::span<T> part = std::span(all).subspan(static_cast<std::size_t>(rank.value) * length, length);
        ASSERT_TRUE(std::ranges::equal(part, values_of<T>(rank.value, length, seed)));
      }
    }
    std::vector<T> back(length);
    scatter(world, all, back, {.root = root});
    ASSERT_EQ(back, mine);
  });
}

TEST_P(Collectives, AllToAllTransposesTheParts) {
  for_each_case([&]<typename T>(Communicator& world, T, std::size_t length, unsigned seed, Sample& sample) {
    if (!sample.takes()) return;
    const auto size = static_cast<std::size_t>(world.size());
    const auto part = [&](int from, std::size_t to) {
      return values_of<T>(from, length, seed + 1000 * static_cast<unsigned>(to));
    };
    std::vector<T> parts;
    std::vector<T> expected;
    for (std::size_t peer = 0; peer < size; ++peer) {
      const std::vector<T> outgoing = part(world.rank().value, peer);
      parts.insert(parts.end(), outgoing.begin(), outgoing.end());
      const std::vector<T> incoming = part(static_cast<int>(peer), static_cast<std::size_t>(world.rank().value));
      expected.insert(expected.end(), incoming.begin(), incoming.end());
    }
    std::vector<T> received(parts.size());
    all_to_all(world, parts, received);
    ASSERT_EQ(received, expected);
  });
}

// Longer than what ranks hold for each other at a time, one call right after the other.
TEST_P(Collectives, LongArraysComeThroughWhole) {
  for (int ranks : {2, 3, 5}) {
    run(ranks, [&](Communicator& world) {
      const auto p = static_cast<std::size_t>(ranks);
      const Rank me = world.rank();
      const Rank root{ranks - 1};
      const std::size_t length = 1'600'003;
      const std::size_t part = length / p;
      const std::vector<float> mine = values_of<float>(me.value, length, 1);
      const std::span<const float> parts = std::span(mine).first(part * p);
      const Slice chunk_of_mine = chunk(length, ranks, me.value);
      std::vector<float> everywhere = mine;
      std::vector<float> at_root = mine;
      std::vector<float> from_root = mine;
      std::vector<float> chunk_of_sum(chunk_of_mine.count);
      std::vector<float> gathered(part * p);
      std::vector<float> exchanged(part * p);
      std::vector<float> collected(me == root ? part * p : 0);
      std::vector<float> scattered(part);
      for (int round = 0; round < 3; ++round) {
        std::ranges::copy(mine, everywhere.begin());
        all_reduce(world, everywhere);
        reduce_scatter(world, mine, chunk_of_sum);
      }
      reduce(world, at_root, {.root = root});
      broadcast(world, from_root, {.root = root});
      all_gather(world, parts.first(part), gathered);
      all_to_all(world, parts, exchanged);
      gather(world, parts.first(part), collected, {.root = root});
      scatter(world, collected, scattered, {.root = root});

      const std::vector<float> sum = reduced<float>(ranks, length, ReduceOp::sum, 1);
      EXPECT_TRUE(everywhere == sum);
      EXPECT_TRUE(std::ranges::equal(chunk_of_sum, std::span(sum).subspan(chunk_of_mine.first, chunk_of_mine.count)));
      EXPECT_TRUE(at_root == (me == root ? sum : mine));
      EXPECT_TRUE(from_root == values_of<float>(root.value, length, 1));
      EXPECT_TRUE(std::ranges::equal(scattered, parts.first(part)));
      for (Rank rank : all_ranks(ranks)) {
        const std::vector<float> theirs = values_of<float>(rank.value, length, 1);
        const std::size_t first = static_cast<std::size_t>(rank.value) * part;
        EXPECT_TRUE(std::ranges::equal(std::span(gathered).subspan(first, part), std::span(theirs).first(part)));
        EXPECT_TRUE(std::ranges::equal(std::span(exchanged).subspan(first, part),
                                       std::span(theirs).subspan(static_cast<std::size_t>(me.value) * part, part)));
        if (me == root) {
          EXPECT_TRUE(std::ranges::equal(std::span(collected).subspan(first, part), std::span(theirs).first(part)));
        }
      }
    });
  }
}

TEST_P(Collectives, NobodyPassesABarrierBeforeAllHaveCome) {
  // Ranks of one host read the same clock.
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int ranks : GetParam().ranks) {
    run(ranks, [&](Communicator& world) {
      for (int round = 1; round <= 200; ++round) {
        std::int64_t came = now();
        barrier(world);
        std::int64_t passed = now();
        all_reduce(world, std::span(&came, 1), {.op = ReduceOp::max});
        all_reduce(world, std::span(&passed, 1), {.op = ReduceOp::min});
        ASSERT_LE(came, passed);
      }
    });
  }
}

TEST_P(Collectives, CallsStartedAheadEndInOrderWhateverTheOrderOfWaiting) {
  for (int ranks : GetParam().ranks) {
    run(ranks, [&](Communicator& world) {
      const int me = world.rank().value;
      std::vector<float> first = values_of<float>(me, 3000, 1);
      std::vector<double> second = values_of<double>(me, 10, 2);
      std::vector<std::int64_t> third = values_of<std::int64_t>(me, 50, 3);
      std::vector<float> fourth = values_of<float>(me, 20000, 4);
      Pending one = start_all_reduce(world, first);
      Pending two = start_all_reduce(world, second, {.algorithm = Ring{}});
      Pending three = start_broadcast(world, third, {.root = Rank{ranks - 1}});
      all_reduce(world, fourth, {.op = ReduceOp::max});  // blocking, behind the others
      EXPECT_TRUE(one.ready() && two.ready() && three.ready());
      three.wait();
      one.wait();
      two.wait();
      EXPECT_EQ(first, reduced<float>(ranks, 3000, ReduceOp::sum, 1));
      EXPECT_EQ(second, reduced<double>(ranks, 10, ReduceOp::sum, 2));
      EXPECT_EQ(third, values_of<std::int64_t>(ranks - 1, 50, 3));
      EXPECT_EQ(fourth, reduced<float>(ranks, 20000, ReduceOp::max, 4));
      EXPECT_THROW(one.wait(), UsageError);
    });
  }
}

TEST_P(Collectives, EveryCallCanBeStartedAndWaitedFor) {
  for (int ranks : {1, 3, 4}) {
    run(ranks, [&](Communicator& world) {
      const int me = world.rank().value;
      const auto p = static_cast<std::size_t>(ranks);
      std::vector<float> reduced_data = values_of<float>(me, 11, 1);
      const std::vector<float> mine = values_of<float>(me, 4, 2);
      std::vector<float> all(4 * p);
      const std::vector<float> data = values_of<float>(me, 4 * p, 3);
      std::vector<float> chunk_of_sum(4);
      std::vector<float> gathered(me == 0 ? 4 * p : 0);
      std::vector<float> scattered(4);
      std::vector<float> received(4 * p);
      Pending reducing = start_reduce(world, reduced_data);
      Pending gathering_all = start_all_gather(world, mine, all);
      Pending scattering_sum = start_reduce_scatter(world, data, chunk_of_sum);
      Pending gathering = start_gather(world, mine, gathered);
      Pending scattering = start_scatter(world, gathered, scattered);
      Pending exchanging = start_all_to_all(world, data, received);
      Pending meeting = start_barrier(world);
      for (Pending* pending :
           {&reducing, &gathering_all, &scattering_sum, &gathering, &scattering, &exchanging, &meeting}) {
        pending->wait();
      }
      if (me == 0) {
        EXPECT_EQ(reduced_data, reduced<float>(ranks, 11, ReduceOp::sum, 1));
      }
      EXPECT_EQ(all[4 * p - 1], values_of<float>(ranks - 1, 4, 2)[3]);
      EXPECT_EQ(chunk_of_sum, reduced<float>(ranks, 4, ReduceOp::sum, 3, 4 * static_cast<std::size_t>(me)));
      EXPECT_EQ(scattered, mine);
      EXPECT_EQ(received[0], values_of<float>(0, 4 * p, 3)[4 * static_cast<std::size_t>(me)]);
    });
  }
}

TEST_P(Collectives, SplitWorldsWorkSideBySideAndInOrderOfTheirKeys) {
  run(5, [&](Communicator& world) {
    const int me = world.rank().value;
    Communicator group = world.split({.color = me % 2, .key = -me});
    EXPECT_EQ(group.size(), me % 2 == 0 ? 3 : 2);
    std::vector<std::int32_t> members(static_cast<std::size_t>(group.size()));
    const std::array mine{me};
    all_gather(group, mine, members);
    EXPECT_EQ(members, me % 2 == 0 ? (std::vector{4, 2, 0}) : (std::vector{3, 1}));
    Communicator alone = group.split({.color = me});
    EXPECT_EQ(alone.size(), 1);
    for (const AllReduceStrategy& algorithm : algorithms()) {
      std::vector<std::int32_t> sum{1};
      all_reduce(group, sum, {.algorithm = algorithm});
      EXPECT_EQ(sum[0], group.size());
      all_reduce(world, sum, {.algorithm = algorithm});
      EXPECT_EQ(sum[0], 3 * 3 + 2 * 2);
      all_reduce(alone, sum, {.algorithm = algorithm});
      EXPECT_EQ(sum[0], 3 * 3 + 2 * 2);
    }
  });
}

}  // namespace
}  // namespace tutti::testing
