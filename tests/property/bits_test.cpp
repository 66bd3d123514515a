// Which bits a reduction gives: the same on all ranks and in all runs, in reproducible mode the same from every
// algorithm, the lower rank's zero on a tie, and one NaN.
#include <tutti/collective.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include <gtest/gtest.h>
#include <tutti/base/chunk.hpp>
#include <tutti/base/random.hpp>

#include "support/oracle.hpp"
#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

template <Element T>
std::vector<std::byte> bits_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Of very different sizes, so that the order of additions shows.
template <Element T>
std::vector<T> rough_values(int rank, std::size_t length, std::uint64_t seed) {
  RandomStream draws({seed, static_cast<std::uint64_t>(rank)});
  std::vector<T> values(length);
  for (T& value : values)
    value = element<T>((draws.uniform() - 0.5) * std::exp2(static_cast<double>(draws.below(20)) - 10));
  return values;
}

template <typename F>
double fold_balanced(int first, int count, F leaf) {
  if (count == 1) return leaf(first);
  const auto half = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return fold_balanced(first, half, leaf) + fold_balanced(first + half, count - half, leaf);
}

float fold_balanced_float(int first, int count, const std::vector<std::vector<float>>& values, std::size_t index) {
  if (count == 1) return values[static_cast<std::size_t>(first)][index];
  const auto half = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return fold_balanced_float(first, half, values, index) +
         fold_balanced_float(first + half, count - half, values, index);
}

std::vector<AllReduceStrategy> algorithms_for(const WorldKind& kind) {
  std::vector<AllReduceStrategy> algorithms = own_all_reduce_strategies();
  algorithms.insert(algorithms.end(), {Tree{1}, Tree{3}});
  if (!kind.shared_memory) std::erase(algorithms, AllReduceStrategy(SharedSlices{}));
  return algorithms;
}

// Every rank's result of one all-reduce.
template <Element T>
std::vector<std::vector<T>> results(const WorldKind& kind, int ranks, const AllReduceOptions& options,
                                    const std::function<std::vector<T>(int rank)>& values) {
  std::vector<std::vector<T>> all(static_cast<std::size_t>(ranks));
  run_world(kind, ranks, [&](Communicator& world) {
    std::vector<T> data = values(world.rank().value);
    all_reduce(world, data, options);
    all[static_cast<std::size_t>(world.rank().value)] = data;
  });
  return all;
}

template <Element T>
void expect_reproducible(ReduceOp op) {
  const std::size_t length = 301;
  for (int ranks : {2, 3, 5, 6, 7, 8}) {
    const auto values = [&](int rank) { return rough_values<T>(rank, length, 11); };
    std::vector<std::byte> expected;
    for (const WorldKind& kind : world_kinds()) {
      for (const AllReduceStrategy& algorithm : algorithms_for(kind)) {
        for (const auto& result :
             results<T>(kind, ranks, {.algorithm = algorithm, .op = op, .reproducible = true}, values)) {
          if (expected.empty()) expected = bits_of(result);
          ASSERT_EQ(bits_of(result), expected) << to_string(algorithm) << " on " << ranks << " ranks, " << kind.name;
        }
      }
    }
  }
}

TEST(ReproducibleAllReduce, GivesTheSameBitsFromEveryAlgorithmAndWorld) {
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
    expect_reproducible<float>(op);
    expect_reproducible<double>(op);
    expect_reproducible<float16>(op);
    expect_reproducible<bfloat16>(op);
  }
}

TEST(ReproducibleAllReduce, FoldsAlongTheBalancedTreeOverRanks) {
  const std::size_t length = 50;
  for (int ranks : {2, 3, 5, 6, 7, 8}) {
    std::vector<std::vector<float>> floats;
    std::vector<std::vector<double>> doubles;
    for (int rank = 0; rank < ranks; ++rank) {
      floats.push_back(rough_values<float>(rank, length, 5));
      doubles.push_back(rough_values<double>(rank, length, 5));
    }
    const AllReduceOptions options{.algorithm = Ring{}, .reproducible = true};
    const auto float_sum = results<float>(world_kinds()[1], ranks, options,
                                          [&](int rank) { return floats[static_cast<std::size_t>(rank)]; });
    const auto double_sum = results<double>(world_kinds()[1], ranks, options,
                                            [&](int rank) { return doubles[static_cast<std::size_t>(rank)]; });
    for (std::size_t i = 0; i < length; ++i) {
      EXPECT_EQ(float_sum[0][i], fold_balanced_float(0, ranks, floats, i));
      EXPECT_EQ(double_sum[0][i],
                fold_balanced(0, ranks, [&](int rank) { return doubles[static_cast<std::size_t>(rank)][i]; }));
    }
  }
}

TEST(ReproducibleAllReduce, ReduceAndReduceScatterGiveTheSameBitsToo) {
  const std::size_t length = 120;
  for (int ranks : {2, 3, 5, 8}) {
    const auto values = [&](int rank) { return rough_values<float>(rank, length, 3); };
    const auto expected = results<float>(world_kinds()[0], ranks, {.reproducible = true}, values)[0];
    for (const WorldKind& kind : world_kinds()) {
      run_world(kind, ranks, [&](Communicator& world) {
        for (const AllReduceStrategy& algorithm : algorithms_for(kind)) {
          if (std::holds_alternative<RecursiveDoubling>(algorithm) ||
              std::holds_alternative<HalvingDoubling>(algorithm))
            continue;
          std::vector<float> data = values(world.rank().value);
          reduce(world, data, {.root = Rank{1}, .algorithm = algorithm, .reproducible = true});
          if (world.rank() == Rank{1}) {
            EXPECT_EQ(bits_of(data), bits_of(expected)) << to_string(algorithm);
          }
        }
        const Slice slice = chunk(length, ranks, world.rank().value);
        std::vector<float> mine(slice.count);
        const std::vector<float> data = values(world.rank().value);
        reduce_scatter(world, data, mine, {.reproducible = true});
        const std::vector<float> part(expected.begin() + static_cast<std::ptrdiff_t>(slice.first),
                                      expected.begin() + static_cast<std::ptrdiff_t>(slice.end()));
        EXPECT_EQ(bits_of(mine), bits_of(part));
      });
    }
  }
}

TEST(AllReduce, GivesAllRanksAndAllRunsTheSameBits) {
  for (int ranks : {2, 3, 5, 8}) {
    for (const WorldKind& kind : world_kinds()) {
      for (const AllReduceStrategy& algorithm : algorithms_for(kind)) {
        const auto values = [&](int rank) { return rough_values<float>(rank, 10'000, 7); };
        std::vector<std::byte> expected;
        for (int run = 0; run < 5; ++run) {
          for (const auto& result : results<float>(kind, ranks, {.algorithm = algorithm}, values)) {
            if (expected.empty()) expected = bits_of(result);
            ASSERT_EQ(bits_of(result), expected) << to_string(algorithm) << " on " << ranks << " ranks, " << kind.name;
          }
        }
      }
    }
  }
}

// -0, +0, numbers around them, and NaNs of several kinds; which rank brings what is drawn.
template <Element T>
std::vector<T> special_values(int rank, std::size_t length) {
  RandomStream draws({99, static_cast<std::uint64_t>(rank)});
  const double choices[] = {
      0.0, -0.0, 1.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  std::vector<T> values(length);
  for (T& value : values) {
    // NaN and infinity seldom, or they drown the ties.
    const std::uint64_t draw = draws.below(40);
    value = element<T>(draw < 38 ? choices[draw % 4] : choices[draw - 34]);
    if (draw == 38) {
      // Some payload of one's own, which must not come through.
      std::byte* bytes = reinterpret_cast<std::byte*>(&value);
      bytes[0] |= std::byte{0x2b};
      bytes[sizeof(T) - 1] |= std::byte{0x80};
    }
  }
  return values;
}

template <Element T>
double as_double(T value) {
  if constexpr (std::same_as<T, float16> || std::same_as<T, bfloat16>) {
    return static_cast<double>(value.to_float());
  } else {
    return static_cast<double>(value);
  }
}

template <Element T>
void expect_ties_to_the_lower_rank() {
  Sample sample(kEveryWhereSanitized);
  const std::size_t length = 2000;
  for (int ranks : {2, 3, 4, 5, 8}) {
    for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      std::vector<T> expected = special_values<T>(0, length);
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<T> other = special_values<T>(rank, length);
        for (std::size_t i = 0; i < length; ++i) {
          const double a = as_double(expected[i]);
          const double b = as_double(other[i]);
          if (std::isnan(a) || std::isnan(b)) {
            expected[i] = element<T>(std::numeric_limits<double>::quiet_NaN());
          } else if (op == ReduceOp::min ? b < a : b > a) {
            expected[i] = other[i];
          }
        }
      }
      for (const WorldKind& kind : world_kinds()) {
        for (const AllReduceStrategy& algorithm : algorithms_for(kind)) {
          for (bool reproducible : {false, true}) {
            if (!sample.takes()) continue;
            const auto all = results<T>(kind, ranks, {.algorithm = algorithm, .op = op, .reproducible = reproducible},
                                        [&](int rank) { return special_values<T>(rank, length); });
            for (const auto& result : all) {
              ASSERT_EQ(bits_of(result), bits_of(expected))
                  << to_string(algorithm) << " " << to_string(op) << " on " << ranks << " ranks, " << kind.name;
            }
          }
        }
      }
    }
  }
}

TEST(AllReduce, MinAndMaxTakeTheLowerRanksZeroOnATieAndSpreadOneNaN) {
  expect_ties_to_the_lower_rank<float>();
  expect_ties_to_the_lower_rank<double>();
  expect_ties_to_the_lower_rank<float16>();
  expect_ties_to_the_lower_rank<bfloat16>();
}

TEST(AllReduce, SumsSpreadTheOneQuietNaN) {
  for (const WorldKind& kind : world_kinds()) {
    for (const AllReduceStrategy& algorithm : algorithms_for(kind)) {
      const auto all = results<float>(kind, 3, {.algorithm = algorithm}, [](int rank) {
        const float infinity = std::numeric_limits<float>::infinity();
        return std::vector<float>{rank == 1 ? std::bit_cast<float>(0xff812345u) : 1.0f,  // a NaN of one's own
                                  rank == 0 ? infinity : -infinity, 2.0f};
      });
      for (const auto& result : all) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(result[0]), 0x7fc00000u) << to_string(algorithm);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(result[1]), 0x7fc00000u) << to_string(algorithm);
        EXPECT_EQ(result[2], 6.0f);
      }
    }
  }
}

TEST(AllReduce, IntegerSumsWrapAround) {
  for (const WorldKind& kind : world_kinds()) {
    for (const AllReduceStrategy& algorithm : algorithms_for(kind)) {
      const auto all = results<std::int32_t>(kind, 2, {.algorithm = algorithm}, [](int rank) {
        return std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::max() - rank, -5};
      });
      EXPECT_EQ(all[0], (std::vector<std::int32_t>{-3, -10})) << to_string(algorithm);
    }
  }
}

}  // namespace
}  // namespace tutti::testing
