// Gossip over topologies x processes x replicas: what replicas add up to stays, they come together as fast as the
// topology says, and go on without those who die.
#include <tutti/coordinate/gossip.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/parameter_sets.hpp>
#include <tutti/strategy/mixing.hpp>

#include "support/eventually.hpp"
#include "support/usage_error.hpp"
#include "support/worlds.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using strategy::Topology;
using ::testing::ElementsAre;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kEveryWhereSanitized;

constexpr Topology kTopologies[] = {Topology::ring, Topology::complete, Topology::exponential, Topology::torus,
                                    Topology::random};

// Of both types, one that is not a multiple of eight bytes long, and one that is long enough to be waited for.
ParameterSet zeros() {
  ParameterSet set;
  set.add({.name = "odd", .shape = {3}});
  set.add({.name = "double", .shape = {2, 2}, .type = DataType::float64});
  set.add({.name = "long", .shape = {1500}});
  return set;
}

// Changes parameters by minus the gradient.
GossipOptions options_of(Topology topology, int replicas, const Communicator& world) {
  return {.replicas = replicas,
          .topology = topology,
          .seed = 3,
          .process = world.rank().value,
          .processes = world.size(),
          .make_rule = [] { return make_update_rule(Sgd{.lr = 1}); },
          .deadline = 60s};
}

std::vector<double> values_of(const ParameterSet& set) {
  std::vector<double> all;
  for (const NamedArray& array : set) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        for (const T its : array.values<T>()) all.push_back(static_cast<double>(its));
      }
    });
  }
  return all;
}

// Whatever it had, it has these from now on.
void give(Gossip& gossip, int replica, const std::function<double()>& draw) {
  ParameterSet change = *gossip.parameters(replica);
  for (NamedArray& array : change) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        for (T& its : array.values<T>()) its -= static_cast<T>(draw());
      }
    });
  }
  gossip.learn(replica, change);
}

void give_all(Gossip& gossip, std::uint64_t number) {
  for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r) {
    RandomStream draws({number, r});
    give(gossip, static_cast<int>(r), [&] { return draws.uniform(); });
  }
}

// Over all replicas of the group's processes, element by element.
struct Spread {
  std::vector<double> sum;
  std::vector<double> least;
  std::vector<double> most;

  double widest() const {
    double widest = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) widest = std::max(widest, most[i] - least[i]);
    return widest;
  }
};

Spread spread_over(Communicator& group, const Gossip& gossip) {
  const std::size_t count = values_of(zeros()).size();
  Spread spread{std::vector<double>(count), std::vector<double>(count, 1e9), std::vector<double>(count, -1e9)};
  for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r) {
    const std::vector<double> its = values_of(*gossip.parameters(static_cast<int>(r)));
    for (std::size_t i = 0; i < count; ++i) {
      spread.sum[i] += its[i];
      spread.least[i] = std::min(spread.least[i], its[i]);
      spread.most[i] = std::max(spread.most[i], its[i]);
    }
  }
  all_reduce(group, spread.sum);
  all_reduce(group, spread.least, {.op = ReduceOp::min});
  all_reduce(group, spread.most, {.op = ReduceOp::max});
  return spread;
}

// Each replica of this process on a thread of its own.
void on_each(const Gossip& gossip, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r)
    threads.emplace_back([&f, r] { f(static_cast<int>(r)); });
  for (std::thread& thread : threads) thread.join();
}

// As fast as they can, and yet nobody is through before another one has begun.
void meet_in_rounds(Communicator& group, Gossip& gossip) {
  for (int round = 0; round < 25; ++round) {
    on_each(gossip, [&](int replica) {
      for (int meeting = 0; meeting < 3; ++meeting) gossip.meet(replica);
    });
    barrier(group);
  }
}

class GossipTest : public ::testing::TestWithParam<testing::WorldKind> {
 protected:
  static void on_worlds(const std::function<void(Communicator&, Topology, int replicas)>& f) {
    int number = 0;
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int replicas : {ranks, ranks + 1, 8}) {
        for (const Topology topology : kTopologies) {
          SCOPED_TRACE(std::string(strategy::topology_name(topology)) + ", " + std::to_string(replicas) + " on " +
                       std::to_string(ranks));
          if (number++ % kEveryWhereSanitized != 0) continue;  // where that is slow
          testing::run_world(GetParam(), ranks, [&](Communicator& world) { f(world, topology, replicas); });
        }
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, GossipTest, ::testing::ValuesIn(testing::world_kinds()), testing::name_of);

// All meet as fast as they can, so that meetings cross each other in every way.
TEST_P(GossipTest, KeepsWhatReplicasAddUpToAndWhatTheySpan) {
  on_worlds([](Communicator& world, Topology topology, int replicas) {
    Gossip gossip(zeros(), options_of(topology, replicas, world));
    gossip.connect(world.transport());
    give_all(gossip, 1);
    const Spread before = spread_over(world, gossip);
    meet_in_rounds(world, gossip);
    const Spread after = spread_over(world, gossip);
    for (std::size_t i = 0; i < before.sum.size(); ++i) {
      ASSERT_NEAR(after.sum[i], before.sum[i], 1e-4);
      ASSERT_GE(after.least[i], before.least[i] - 1e-5);
      ASSERT_LE(after.most[i], before.most[i] + 1e-5);
    }
    if (replicas > 1) {
      EXPECT_LT(after.widest(), 0.02 * before.widest());
    }
    if (world.rank() == Rank{0}) {
      const std::vector<double> mean = values_of(gossip.mean());
      for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(mean[i], before.sum[i] / replicas, 1e-5);
    }
    barrier(world);
    gossip.finish();
  });
}

// One meeting at a time, of one that all are as likely to be: on the average the square of the distance from the mean
// shrinks as the expected matrix of the topology says, or faster.
TEST_P(GossipTest, BringsReplicasTogetherAtTheRateOfTheTopology) {
  constexpr int kReplicas = 6;
  constexpr int kRuns = 40;
  constexpr int kEvents = 4 * kReplicas;
  for (const Topology topology : kTopologies) {
    SCOPED_TRACE(std::string(strategy::topology_name(topology)));
    testing::run_world(GetParam(), 3, [&](Communicator& world) {
      Gossip gossip(zeros(), options_of(topology, kReplicas, world));
      gossip.connect(world.transport());
      RandomStream draws({17});
      const auto square = [&] {
        const Spread now = spread_over(world, gossip);
        std::vector<double> sum(1);
        for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r) {
          const std::vector<double> its = values_of(*gossip.parameters(static_cast<int>(r)));
          for (std::size_t i = 0; i < its.size(); ++i) {
            const double distance = its[i] - now.sum[i] / kReplicas;
            sum[0] += distance * distance;
          }
        }
        all_reduce(world, sum);
        return sum[0];
      };
      double before = 0;
      double after = 0;
      for (int run = 0; run < kRuns; ++run) {
        give_all(gossip, static_cast<std::uint64_t>(run));
        before += square();
        for (int event = 0; event < kEvents; ++event) {
          const auto replica = static_cast<int>(draws.below(kReplicas));
          if (gossip.is_here(replica)) {
            EXPECT_GT(gossip.meet(replica), 0);
          }
          barrier(world);
        }
        after += square();
      }
      const double eigenvalue = MixingMatrix(topology, {.replicas = kReplicas, .seed = 3}).gossip_eigenvalue();
      EXPECT_LE(after / before, 1.5 * std::pow(eigenvalue, kEvents) + 1e-9);
      gossip.finish();
    });
  }
}

// A swap would keep the sum, too, and go on for ever.
TEST_P(GossipTest, BringsTwoTogetherThatAlwaysAskEachOtherAtTheSameTime) {
  testing::run_world(GetParam(), 2, [&](Communicator& world) {
    Gossip gossip(zeros(), options_of(Topology::ring, 2, world));
    gossip.connect(world.transport());
    give_all(gossip, 1);
    const double before = spread_over(world, gossip).widest();
    for (int meeting = 0; meeting < 40; ++meeting) {
      barrier(world);
      gossip.meet(world.rank().value);
    }
    barrier(world);
    EXPECT_LT(spread_over(world, gossip).widest(), 1e-3 * before);
    gossip.finish();
  });
}

TEST_P(GossipTest, CountsWhatReplicasGiveToEachOther) {
  testing::run_world(GetParam(), 2, [&](Communicator& world) {
    Gossip gossip(zeros(), options_of(Topology::ring, 3, world));
    gossip.connect(world.transport());
    const double bytes = 2 * (12 + 32 + 6000);
    for (int replica = 0; replica < 3; ++replica) {
      if (gossip.is_here(replica)) {
        EXPECT_EQ(gossip.meet(replica), bytes);
      }
      barrier(world);
    }
    gossip.finish();
  });
}

// The others close up, and are told by rank 0; what they add up to stays as it is, without the one that is gone.
TEST_P(GossipTest, GoesOnWithoutWhoDies) {
  for (const Topology topology : kTopologies) {
    SCOPED_TRACE(std::string(strategy::topology_name(topology)));
    testing::run_world(GetParam(), 4, [&](Communicator& world) {
      constexpr int kDead = 2;
      Communicator others = world.split({.color = world.rank().value == kDead ? 1 : 0});
      Gossip gossip(zeros(), options_of(topology, 7, world));
      gossip.connect(world.transport());
      give_all(gossip, 1);
      barrier(world);
      if (world.rank().value == kDead) {
        on_each(gossip, [&](int replica) {
          for (int meeting = 0; meeting < 10; ++meeting) gossip.meet(replica);
        });
        return gossip.end("dies");
      }
      // In the middle of their meetings.
      on_each(gossip, [&](int replica) {
        for (int meeting = 0; meeting < 40; ++meeting) gossip.meet(replica);
      });
      EXPECT_TRUE(eventually([&] { return gossip.living() == 5; }));  // of 7, in parts of 2, 2, 2 and 1
      barrier(others);
      give_all(gossip, 2);
      const Spread before = spread_over(others, gossip);
      if (world.rank() == Rank{0}) {
        const std::vector<double> mean = values_of(gossip.mean());
        for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(mean[i], before.sum[i] / 5, 1e-5);
        ParameterSet arrays;
        gossip.save(arrays);
        EXPECT_NE(arrays.find("replica/3/odd"), nullptr);
        EXPECT_EQ(arrays.find("replica/4/odd"), nullptr);
        EXPECT_NE(arrays.find("replica/6/odd"), nullptr);
      }
      barrier(others);
      meet_in_rounds(others, gossip);
      const Spread after = spread_over(others, gossip);
      for (std::size_t i = 0; i < before.sum.size(); ++i) EXPECT_NEAR(after.sum[i], before.sum[i], 1e-4);
      EXPECT_LT(after.widest(), 0.02 * before.widest());
      EXPECT_THAT(gossip.take_problems(), IsEmpty());
      barrier(others);
      gossip.finish();
    });
  }
}

// Rank 0 says that a replica counts no more, whose process goes on.
TEST_P(GossipTest, LeavesOutWhoIsLost) {
  testing::run_world(GetParam(), 2, [&](Communicator& world) {
    Gossip gossip(zeros(), options_of(Topology::complete, 4, world));
    gossip.connect(world.transport());
    for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r)
      give(gossip, static_cast<int>(r), [&] { return r == 3 ? 100 : 1; });
    barrier(world);
    if (world.rank() == Rank{0}) gossip.lose(3);
    EXPECT_TRUE(eventually([&] { return gossip.living() == 3; }));
    barrier(world);
    if (world.rank() == Rank{0}) {
      EXPECT_NEAR(values_of(gossip.mean())[0], 1, 1e-6);
    }
    for (int meeting = 0; meeting < 20; ++meeting) {
      for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r) gossip.meet(static_cast<int>(r));
    }
    for (std::size_t r = gossip.here().first; r < gossip.here().end(); ++r)
      EXPECT_NEAR(values_of(*gossip.parameters(static_cast<int>(r)))[0], r == 3 ? 100 : 1, 1e-5);
    barrier(world);
    gossip.finish();
  });
}

// A line that breaks between two that live. Their replicas meet others, and rank 0 says so.
TEST_P(GossipTest, GoesOnWhereTwoDoNotReachEachOther) {
  testing::run_world(GetParam(), 3, [&](Communicator& world) {
    Gossip gossip(zeros(), options_of(Topology::complete, 6, world));
    gossip.connect(world.transport());
    give_all(gossip, 1);
    const Spread before = spread_over(world, gossip);
    if (world.rank() == Rank{1}) gossip.pair(2)->abort({FailureKind::late, {Rank{1}}, "it was silent"});
    std::vector<std::string> problems;
    if (world.rank() == Rank{0}) {
      EXPECT_TRUE(eventually([&] {
        problems = gossip.take_problems();
        return !problems.empty();
      }));
      EXPECT_THAT(problems, ElementsAre("processes 1 and 2 do not reach each other any more, and their replicas do not "
                                        "meet"));
    }
    barrier(world);
    meet_in_rounds(world, gossip);
    const Spread after = spread_over(world, gossip);
    for (std::size_t i = 0; i < before.sum.size(); ++i) ASSERT_NEAR(after.sum[i], before.sum[i], 1e-4);
    EXPECT_LT(after.widest(), 0.02 * before.widest());
    EXPECT_EQ(gossip.living(), 6);
    barrier(world);
    gossip.finish();
  });
}

// What is saved on some processes is what others go on with.
TEST_P(GossipTest, GoesOnOnOtherProcesses) {
  ParameterSet saved;  // at rank 0
  for (const int ranks : {3, 1, 2}) {
    const bool is_first = ranks == 3;
    testing::run_world(GetParam(), ranks, [&](Communicator& world) {
      GossipOptions options = options_of(Topology::ring, 5, world);
      options.make_rule = [] { return make_update_rule(Sgd{.lr = 1, .momentum = 0.5}); };
      Gossip gossip(zeros(), options);
      gossip.connect(world.transport());
      if (is_first) {
        give_all(gossip, 1);
      } else {
        ParameterSet its;
        if (world.rank() == Rank{0}) its = saved;
        broadcast(world, its);
        gossip.restore(its);
      }
      barrier(world);
      if (world.rank() == Rank{0}) {
        ParameterSet now;
        gossip.save(now);
        for (const NamedArray& array : saved)
          EXPECT_TRUE(std::ranges::equal(now.at(array.name()).bytes(), array.bytes()));
        EXPECT_TRUE(is_first || now.size() == saved.size());
        saved = std::move(now);
      }
      barrier(world);
      gossip.finish();
    });
  }
}

TEST_P(GossipTest, RefusesProcessesThatHaveOtherOptions) {
  struct Other {
    std::function<void(GossipOptions&)> change;
    std::string named;
  };
  const std::vector<Other> others = {
      {[](GossipOptions& its) { its.replicas = 12; }, "process 1 has replicas: 12"},
      {[](GossipOptions& its) { its.topology = Topology::torus; }, "process 1 has topology: torus"},
      {[](GossipOptions& its) { its.seed = 4; }, "process 1 has seed: 4"}};
  for (const Other& other : others) {
    testing::run_world(GetParam(), 3, [&](Communicator& world) {
      GossipOptions options = options_of(Topology::ring, 6, world);
      if (world.rank() == Rank{1}) other.change(options);
      Gossip gossip(zeros(), options);
      const std::string why = testing::error_of([&] { gossip.connect(world.transport()); });
      EXPECT_THAT(why, HasSubstr("gossip needs the same on all processes"));
      EXPECT_THAT(why, HasSubstr(other.named));
    });
  }
  testing::run_world(GetParam(), 2, [&](Communicator& world) {
    ParameterSet set = zeros();
    if (world.rank() == Rank{1}) set.add({.name = "more", .shape = {2}});
    Gossip gossip(set, options_of(Topology::ring, 2, world));
    const std::string why = testing::error_of([&] { gossip.connect(world.transport()); });
    EXPECT_THAT(why, HasSubstr("parameters: 3 arrays of 6044 bytes"));
    EXPECT_THAT(why, HasSubstr("parameters: 4 arrays of 6052 bytes"));
  });
}

TEST_P(GossipTest, ConnectsOnce) {
  testing::run_world(GetParam(), 2, [&](Communicator& world) {
    GossipOptions options = options_of(Topology::ring, 2, world);
    Gossip gossip(zeros(), options);
    gossip.connect(world.transport());
    EXPECT_EQ(testing::usage_error([&] { gossip.connect(world.transport()); }), "it is connected already");
    barrier(world);
    gossip.finish();
    options.process = 1 - options.process;
    Gossip misplaced(zeros(), options);
    EXPECT_EQ(testing::usage_error([&] { misplaced.connect(world.transport()); }),
              "it is process " + std::to_string(options.process) + " of 2, and the world is that of rank " +
                  std::to_string(world.rank().value) + " of 2");
  });
}

// As if another program spoke there: the process that hears it fails, and touches nothing.
TEST_P(GossipTest, RefusesMessagesOfReplicasThatAreNot) {
  constexpr std::int64_t kLost = 2;
  constexpr std::uint64_t kFirstGossipTag = kFirstInternalTag + (std::uint64_t{3} << 61);
  for (const std::int64_t replica : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 40}) {
    testing::run_world(GetParam(), 2, [&](Communicator& world) {
      Gossip gossip(zeros(), options_of(Topology::ring, 4, world));
      gossip.connect(world.transport());
      if (world.rank() == Rank{0}) {
        const std::array<std::int64_t, 3> head = {kLost, replica, 0};
        send(*gossip.pair(1), Rank{1}, Tag{kFirstGossipTag}, std::as_bytes(std::span(head)), Deadline::after(10s));
      } else {
        std::string why;
        EXPECT_TRUE(eventually([&] {
          why = testing::error_of([&] { gossip.meet(2); });
          return why != "(no error)";
        }));
        EXPECT_EQ(why, "process 0 speaks of replica " + std::to_string(replica) + ": there are 4");
      }
      barrier(world);
    });
  }
}

TEST(Gossip, HasNoMeanWhereNobodyIsLeft) {
  Gossip gossip(zeros(), {.replicas = 2, .make_rule = [] { return make_update_rule(Sgd{}); }});
  gossip.lose(0);
  EXPECT_EQ(gossip.mean(), zeros());
  gossip.lose(1);
  EXPECT_EQ(testing::error_of([&] { (void)gossip.mean(); }), "no replica is left, so they have no mean");
}

TEST(Gossip, IsNotTouchedByACheckpointOfSomethingElse) {
  const auto made_by = [](const OptimizerRule& rule) {
    return std::make_unique<Gossip>(zeros(), GossipOptions{.make_rule = [rule] { return make_update_rule(rule); }});
  };
  const auto gossip = made_by(Sgd{.lr = 1, .momentum = 0.5});
  give_all(*gossip, 1);
  ParameterSet before;
  gossip->save(before);
  const auto refused = [&](const ParameterSet& arrays) {
    const std::string why = testing::usage_error([&] { gossip->restore(arrays); });
    ParameterSet after;
    gossip->save(after);
    EXPECT_TRUE(after == before) << why;
    return why;
  };
  const auto with = [&](const std::string& name, std::vector<std::int64_t> numbers) {
    ParameterSet arrays;
    for (const NamedArray& array : before) {
      if (array.name() != name) arrays.add(array.layout(), array.bytes());
    }
    arrays.add(name, {static_cast<std::int64_t>(numbers.size())}, numbers);
    return arrays;
  };
  const std::string meetings = "worker/0/meetings";
  for (const std::vector<std::int64_t>& bad : {std::vector<std::int64_t>{}, {1, 2}, {-1}})
    EXPECT_EQ(refused(with(meetings, bad)), "\"worker/0/meetings\": expected one number from 0 on");
  ParameterSet others;
  const auto another = made_by(Adam{});
  give_all(*another, 2);
  another->save(others);
  EXPECT_EQ(refused(others), "the checkpoint is of adam, and the rule is sgd with momentum");
  ParameterSet astray = before;
  astray.at("replica/0/odd").values<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused(astray), "\"odd\" has numbers that are infinite or not a number");
}

TEST(Gossip, RefusesWhatCannotMeet) {
  ParameterSet set;
  set.add({.name = "counts", .shape = {2}, .type = DataType::int64});
  EXPECT_THAT(testing::usage_error([&] { Gossip(set, {.make_rule = [] { return make_update_rule(Sgd{}); }}); }),
              HasSubstr("\"counts\" is int64 [2]; replicas that meet have float32 or float64"));
}

TEST(Gossip, NeedsARule) {
  EXPECT_EQ(testing::usage_error([] { Gossip(zeros(), {}); }), "replicas that meet need a rule to learn by: make_rule");
  EXPECT_EQ(testing::usage_error([] { Gossip(zeros(), {.make_rule = [] { return std::unique_ptr<UpdateRule>(); }}); }),
            "expected rules by which gradients change parameters, and make_rule made none");
}

TEST(Gossip, RefusesWhatCannotBe) {
  const auto why = [](GossipOptions options) {
    options.make_rule = [] { return make_update_rule(Sgd{}); };
    return testing::usage_error([&] { Gossip(zeros(), options); });
  };
  EXPECT_EQ(why({.replicas = 0}), "replicas: expected at least 1, found 0");
  EXPECT_EQ(why({.processes = 0}), "processes: expected at least 1, found 0");
  EXPECT_EQ(why({.replicas = 2, .process = -1, .processes = 2}), "process: expected at least 0, found -1");
  EXPECT_EQ(why({.replicas = 2, .process = 2, .processes = 2}),
            "process: expected less than the 2 that there are, found 2");
  EXPECT_EQ(why({.replicas = 2, .processes = 3}), "replicas: expected one for each of 3 processes, found 2");
  EXPECT_EQ(why({.deadline = Duration::zero()}), "deadline: expected a time above 0, found 0 s");
  // The first two of four are here.
  Gossip gossip(zeros(), {.replicas = 4, .processes = 2, .make_rule = [] { return make_update_rule(Sgd{}); }});
  const std::string elsewhere = "replica 2 is not of this process, which has 2 from 0 on";
  EXPECT_EQ(testing::usage_error([&] { gossip.learn(2, zeros()); }), elsewhere);
  EXPECT_EQ(testing::usage_error([&] { (void)gossip.parameters(2); }), elsewhere);
  EXPECT_EQ(testing::usage_error([&] { gossip.meet(2); }), elsewhere);
  EXPECT_THAT(testing::usage_error([&] { gossip.meet(-1); }), HasSubstr("replica -1 is not of this process"));
  EXPECT_EQ(testing::usage_error([&] { gossip.lose(4); }), "replica 4: there are 4");
}

// A rule of one's own may fail halfway.
TEST(Gossip, IsNotTouchedByARuleThatThrows) {
  struct Failing final : UpdateRule {
    void apply(ParameterSet& parameters, const ParameterSet&, const UpdateStep&) override {
      parameters[1].values<double>()[0] = 7;
      throw Error("halfway");
    }
  };
  Gossip gossip(zeros(), {.make_rule = [] { return std::make_unique<Failing>(); }});
  EXPECT_THROW(gossip.learn(0, zeros()), Error);
  EXPECT_EQ(gossip.mean(), zeros());
}

TEST(Gossip, IsNotTouchedByGradientsThatItRefuses) {
  Gossip gossip(zeros(), {.make_rule = [] { return make_update_rule(Sgd{}); }});
  ParameterSet short_ones;
  const std::vector<double> few = {1};
  short_ones.add("double", {1}, few);
  EXPECT_THAT(testing::usage_error([&] { gossip.learn(0, short_ones); }),
              HasSubstr("these gradients are not of this model: "));
  ParameterSet gradients = zeros();
  gradients[1].values<double>()[2] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(testing::usage_error([&] { gossip.learn(0, gradients); }),
            "\"double\" has gradients that are infinite or not a number");
  EXPECT_EQ(gossip.mean(), zeros());
}

}  // namespace
}  // namespace tutti
