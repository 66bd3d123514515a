// What collectives over processes have that others do not: Gloo's own all-reduce.
#include <gtest/gtest.h>
#include <tutti/collective.hpp>

#include "support/oracle.hpp"
#include "support/usage_error.hpp"
#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

class GloosAllReduce : public ::testing::TestWithParam<WorldKind> {};

INSTANTIATE_TEST_SUITE_P(Worlds, GloosAllReduce, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(GloosAllReduce, GivesEveryRankTheReduction) {
  for (int ranks : GetParam().ranks) {
    run_world(GetParam(), ranks, [&](Communicator& world) {
      unsigned seed = 0;
      for (std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{20'011}}) {
        for (DataType type : kAllDataTypes) {
          if (type == DataType::bfloat16) continue;
          for (ReduceOp op : kAllReduceOps) {
            if (op == ReduceOp::mean && !is_floating(type)) continue;
            dispatch(type, [&]<typename T>(std::type_identity<T>) {
              std::vector<T> data = values_of<T>(world.rank().value, length, ++seed);
              all_reduce(world, data, {.algorithm = Gloo{}, .op = op});
              ASSERT_EQ(data, reduced<T>(ranks, length, op, seed)) << to_string(op) << " of " << to_string(type);
            });
          }
        }
      }
    });
  }
}

TEST_P(GloosAllReduce, WorksInGroupsOfRanks) {
  run_world(GetParam(), 5, [&](Communicator& world) {
    Communicator group = world.split({.color = world.rank().value % 2});
    for (Communicator* ranks : {&group, &world, &group}) {
      std::vector<std::int32_t> data{1};
      all_reduce(*ranks, data, {.algorithm = Gloo{}});
      EXPECT_EQ(data[0], ranks->size());
    }
  });
}

TEST_P(GloosAllReduce, RefusesWhatItCannotDoAndTheNextCallWorks) {
  run_world(GetParam(), 3, [&](Communicator& world) {
    std::vector<bfloat16> halves(4);
    EXPECT_THROW(all_reduce(world, halves, {.algorithm = Gloo{}}), UsageError);
    std::vector<float> data(4, 1.0f);
    EXPECT_THROW(all_reduce(world, data, {.algorithm = Gloo{}, .reproducible = true}), UsageError);
    EXPECT_THROW(broadcast(world, data, {.algorithm = Gloo{}}), UsageError);
    all_reduce(world, data, {.algorithm = Gloo{}});
    EXPECT_EQ(data[0], 3.0f);
  });
}

// A length that differs would end Gloo's process: the agreement comes first.
TEST_P(GloosAllReduce, NeverSeesALengthThatDiffers) {
  run_world(GetParam(), 3, [&](Communicator& world) {
    for (int round = 0; round < 5; ++round) {
      std::vector<float> data(world.rank() == Rank{1} ? 7 : 5, 1.0f);
      EXPECT_THROW(all_reduce(world, data, {.algorithm = Gloo{}}), PeerError);
      std::vector<float> right(5, 1.0f);
      all_reduce(world, right, {.algorithm = Gloo{}});
      EXPECT_EQ(right[4], 3.0f);
    }
  });
}

}  // namespace
}  // namespace tutti::testing
