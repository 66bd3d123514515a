// Ranks that bring different things to a call: every one of them gets the same error, and the next call works.
#include <tutti/collective.hpp>

#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class Agreement : public ::testing::TestWithParam<WorldKind> {
 protected:
  // Each rank makes its own call; all must get one and the same disagreement, which is returned. The next call works.
  Failure disagreement(int ranks, const std::function<void(Communicator&)>& call) const {
    std::mutex mutex;
    std::set<std::string> messages;
    Failure common;
    run_world(GetParam(), ranks, [&](Communicator& world) {
      for (int again = 0; again < 3; ++again) {
        try {
          call(world);
          ADD_FAILURE() << to_string(world.rank()) << " got no error";
        } catch (const PeerError& error) {
          EXPECT_EQ(error.kind(), FailureKind::disagreement) << error.what();
          EXPECT_TRUE(error.communicator_usable());
          const std::lock_guard lock(mutex);
          messages.insert(error.what());
          common = error.failure();
        }
        EXPECT_FALSE(world.broken());
        std::vector<float> sum{1, 2};
        all_reduce(world, sum);
        EXPECT_EQ(sum[0], static_cast<float>(world.size()));
      }
    });
    EXPECT_EQ(messages.size(), 1u) << "the ranks got different errors";
    return common;
  }

  // As above, where `odd` is the rank that differs.
  void expect_odd_one(const std::function<void(Communicator&, bool is_odd)>& call, const std::string& mine,
                      const std::string& theirs) const {
    for (int ranks : {2, 3, 5}) {
      for (int odd : {0, ranks - 1}) {
        const Failure failure =
            disagreement(ranks, [&](Communicator& world) { call(world, world.rank().value == odd); });
        EXPECT_THAT(failure.message, HasSubstr(mine + " on rank " + std::to_string(odd)));
        EXPECT_THAT(failure.message, HasSubstr(theirs + " on rank"));
        if (ranks > 2) {
          EXPECT_EQ(failure.ranks, std::vector{Rank{odd}}) << failure.message;
        }
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, Agreement, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(Agreement, NamesWhoBroughtAnotherLength) {
  for (const AllReduceStrategy& algorithm :
       {AllReduceStrategy(Auto{}), AllReduceStrategy(Ring{}), AllReduceStrategy(Tree{2})}) {
    expect_odd_one(
        [&](Communicator& world, bool is_odd) {
          std::vector<float> data(is_odd ? 5 : 4);
          all_reduce(world, data, {.algorithm = algorithm});
        },
        "5", "4");
  }
}

TEST_P(Agreement, NamesWhoBroughtAnotherType) {
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> floats(4);
        std::vector<std::int32_t> integers(4);
        is_odd ? all_reduce(world, integers) : all_reduce(world, floats);
      },
      "int32", "float32");
}

TEST_P(Agreement, NamesWhoBroughtAnotherOperation) {
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        all_reduce(world, data, {.op = is_odd ? ReduceOp::max : ReduceOp::mean});
      },
      "Max", "Mean");
}

TEST_P(Agreement, NamesWhoBroughtAnotherAlgorithm) {
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        all_reduce(world, data, {.algorithm = is_odd ? AllReduceStrategy(Ring{}) : AllReduceStrategy(Tree{2})});
      },
      "Ring", "Tree:2");
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        all_reduce(world, data, {.algorithm = Tree{is_odd ? 3 : 2}});
      },
      "Tree:3", "Tree:2");
}

TEST_P(Agreement, NamesWhoWantsReproducibleSums) {
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        all_reduce(world, data, {.reproducible = is_odd});
      },
      "yes", "no");
}

TEST_P(Agreement, NamesWhoBroughtAnotherRoot) {
  // Each takes the other for the root: both would wait to receive.
  const Failure crossed = disagreement(2, [](Communicator& world) {
    std::vector<float> data(4);
    broadcast(world, data, {.root = Rank{1 - world.rank().value}});
  });
  EXPECT_THAT(crossed.message, HasSubstr("root 1 on rank 0, 0 on rank 1"));
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        reduce(world, data, {.root = Rank{is_odd ? 1 : 0}});
      },
      "1", "0");
}

TEST_P(Agreement, NamesWhoMadeAnotherCall) {
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        is_odd ? broadcast(world, data) : all_reduce(world, data);
      },
      "broadcast", "all_reduce");
  expect_odd_one(
      [](Communicator& world, bool is_odd) {
        std::vector<float> data(4);
        is_odd ? barrier(world) : reduce(world, data);
      },
      "barrier", "reduce");
}

TEST_P(Agreement, TellsSeveralDifferencesAtOnce) {
  const Failure failure = disagreement(3, [](Communicator& world) {
    std::vector<float> data(world.rank() == Rank{1} ? 7 : 8);
    all_reduce(world, data, {.op = world.rank() == Rank{2} ? ReduceOp::min : ReduceOp::sum});
  });
  EXPECT_THAT(failure.message, HasSubstr("length 8 on ranks 0 and 2, 7 on rank 1"));
  EXPECT_THAT(failure.message, HasSubstr("operation Sum on ranks 0 and 1, Min on rank 2"));
  EXPECT_EQ(failure.ranks, (std::vector{Rank{1}, Rank{2}}));
}

TEST_P(Agreement, RefusesABroadcastOfNothing) {
  const Failure failure = disagreement(3, [](Communicator& world) {
    std::vector<float> data(4);
    broadcast(world, data, {.role = BroadcastRole::sink});
  });
  EXPECT_THAT(failure.message, HasSubstr("nothing to broadcast"));
}

TEST_P(Agreement, RefusesABroadcastOfSeveral) {
  const Failure failure = disagreement(4, [](Communicator& world) {
    std::vector<float> data(4);
    broadcast(world, data, {.role = world.rank().value % 2 == 0 ? BroadcastRole::source : BroadcastRole::sink});
  });
  EXPECT_THAT(failure.message, HasSubstr("ranks 0 and 2"));
  EXPECT_EQ(failure.ranks, (std::vector{Rank{0}, Rank{2}}));
}

TEST_P(Agreement, TouchesNoDataWhereRanksDisagree) {
  run_world(GetParam(), 3, [](Communicator& world) {
    for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Ring{})}) {
      for (std::size_t length : {10u, 100'000u}) {
        std::vector<float> data(length + (world.rank() == Rank{1} ? 1 : 0), 3.0f);
        EXPECT_THROW(all_reduce(world, data, {.algorithm = algorithm}), PeerError);
        EXPECT_TRUE(std::ranges::all_of(data, [](float value) { return value == 3.0f; }));
      }
    }
  });
}

struct Misused {
  std::string name;
  std::function<void(Communicator&)> call;
  std::string says;
};

const std::vector<Misused>& misuses() {
  static const std::vector<Misused> all{
      {"arity 0",
       [](Communicator& w) {
         std::vector<float> d(4);
         all_reduce(w, d, {.algorithm = Tree{0}});
       },
       "0"},
      {"arity -3",
       [](Communicator& w) {
         std::vector<float> d(4);
         reduce(w, d, {.algorithm = Tree{-3}});
       },
       "-3"},
      {"root -1",
       [](Communicator& w) {
         std::vector<float> d(4);
         reduce(w, d, {.root = Rank{-1}});
       },
       "-1"},
      {"root 99",
       [](Communicator& w) {
         std::vector<float> d(4);
         broadcast(w, d, {.root = Rank{99}});
       },
       "99"},
      {"gather root",
       [](Communicator& w) {
         std::vector<float> d(4);
         gather(w, d, {}, {.root = Rank{9}});
       },
       "9"},
      {"mean of integers",
       [](Communicator& w) {
         std::vector<std::int32_t> d(4);
         all_reduce(w, d, {.op = ReduceOp::mean});
       },
       "int32"},
      {"short all",
       [](Communicator& w) {
         std::vector<float> d(4), a(5);
         all_gather(w, d, a);
       },
       "length 5"},
      {"long chunk",
       [](Communicator& w) {
         std::vector<float> d(4), m(50);
         reduce_scatter(w, d, m);
       },
       "length 50"},
      {"other type",
       [](Communicator& w) {
         std::vector<float> d(4);
         std::vector<double> a(4 * static_cast<std::size_t>(w.size()));
         all_gather(w, d, a);
       },
       "float64"},
      {"uneven parts",
       [](Communicator& w) {
         std::vector<float> d(7), r(7);
         all_to_all(w, d, r);
       },
       "7"},
      {"no such way",
       [](Communicator& w) {
         std::vector<float> d(4);
         broadcast(w, d, {.algorithm = HalvingDoubling{}});
       },
       "HalvingDoubling"},
  };
  return all;
}

TEST_P(Agreement, MisuseOnAllRanksIsAUsageErrorAndTheNextCallWorks) {
  for (const Misused& misused : misuses()) {
    SCOPED_TRACE(misused.name);
    run_world(GetParam(), 3, [&](Communicator& world) {
      for (int again = 0; again < 3; ++again) {
        try {
          misused.call(world);
          ADD_FAILURE() << "no error";
        } catch (const UsageError& error) {
          EXPECT_THAT(error.what(), HasSubstr(misused.says));
        }
      }
      std::vector<float> sum{1};
      all_reduce(world, sum);
      EXPECT_EQ(sum[0], 3.0f);
    });
  }
}

TEST_P(Agreement, MisuseOnOneRankEndsTheOthersCallsNamingIt) {
  for (const Misused& misused : misuses()) {
    SCOPED_TRACE(misused.name);
    run_world(GetParam(), 3, [&](Communicator& world) {
      for (int again = 0; again < 3; ++again) {
        std::vector<float> data{1};
        if (world.rank() == Rank{1}) {
          EXPECT_THROW(misused.call(world), UsageError);
        } else {
          try {
            all_reduce(world, data);
            ADD_FAILURE() << "no error";
          } catch (const PeerError& error) {
            EXPECT_EQ(error.kind(), FailureKind::disagreement) << error.what();
            EXPECT_THAT(error.what(), HasSubstr("rank 1"));
          }
        }
        std::vector<float> sum{1};
        all_reduce(world, sum);
        EXPECT_EQ(sum[0], 3.0f);
      }
    });
  }
}

TEST_P(Agreement, SharedSlicesAreRefusedWhereMemoryIsNotShared) {
  if (GetParam().shared_memory) return;  // the other half is the property suite's
  run_world(GetParam(), 2, [](Communicator& world) {
    std::vector<float> data(4);
    EXPECT_THROW(all_reduce(world, data, {.algorithm = SharedSlices{}}), UsageError);
    all_reduce(world, data);
  });
}

}  // namespace
}  // namespace tutti::testing
