// A rank that throws, sleeps past the deadline, or leaves, at every step of every algorithm: nobody hangs, everybody
// names it, and no array is touched after its owner was told. (Arrays are freed at once, which the address sanitizer
// watches.)
#include <tutti/collective.hpp>

#include <atomic>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

enum class Fault { throws, sleeps, leaves };

struct Boom : std::runtime_error {
  Boom() : std::runtime_error("boom") {}
};

// What a rank does in its call, and how to look at one: by name, so that a failure says which.
struct Work {
  std::string name;
  std::function<void(Communicator&, std::vector<float>&, Duration deadline)> call;
};

std::vector<Work> all_work(const WorldKind& kind) {
  std::vector<Work> work;
  std::vector<AllReduceStrategy> algorithms = own_all_reduce_strategies();
  algorithms.push_back(Tree{1});
  for (const AllReduceStrategy& algorithm : algorithms) {
    if (std::holds_alternative<SharedSlices>(algorithm) && !kind.shared_memory) continue;
    if (std::holds_alternative<Auto>(algorithm)) continue;
    for (bool reproducible : {false, true}) {
      work.push_back({to_string(algorithm) + (reproducible ? " reproducible" : ""),
                      [=](Communicator& world, auto& data, Duration deadline) {
                        all_reduce(world, data,
                                   {.algorithm = algorithm, .reproducible = reproducible, .deadline = deadline});
                      }});
    }
  }
  for (const AllReduceStrategy& algorithm : {AllReduceStrategy(Auto{}), AllReduceStrategy(Centralized{}),
                                             AllReduceStrategy(Tree{2}), AllReduceStrategy(Ring{})}) {
    work.push_back({"reduce " + to_string(algorithm), [=](Communicator& world, auto& data, Duration deadline) {
                      const Rank root{world.size() - 1};
                      reduce(world, data, {.root = root, .algorithm = algorithm, .deadline = deadline});
                    }});
    work.push_back({"broadcast " + to_string(algorithm), [=](Communicator& world, auto& data, Duration deadline) {
                      const Rank root{world.size() - 1};
                      broadcast(world, data, {.root = root, .algorithm = algorithm, .deadline = deadline});
                    }});
  }
  const auto all_of = [](Communicator& world, const std::vector<float>& data) {
    return std::vector<float>(data.size() * static_cast<std::size_t>(world.size()));
  };
  work.push_back({"all_gather", [=](Communicator& world, auto& data, Duration deadline) {
                    std::vector<float> all = all_of(world, data);
                    all_gather(world, data, all, {.deadline = deadline});
                  }});
  work.push_back({"reduce_scatter", [=](Communicator& world, auto& data, Duration deadline) {
                    const std::vector<float> all = all_of(world, data);
                    reduce_scatter(world, all, data, {.deadline = deadline});
                  }});
  work.push_back({"gather", [=](Communicator& world, auto& data, Duration deadline) {
                    std::vector<float> all = all_of(world, data);
                    gather(world, data, all, {.deadline = deadline});
                  }});
  work.push_back({"scatter", [=](Communicator& world, auto& data, Duration deadline) {
                    const std::vector<float> all = all_of(world, data);
                    scatter(world, all, data, {.deadline = deadline});
                  }});
  work.push_back(
      {"barrier", [](Communicator& world, auto&, Duration deadline) { barrier(world, {.deadline = deadline}); }});
  work.push_back({"all_to_all", [](Communicator& world, auto& data, Duration deadline) {
                    std::vector<float> parts(data.size() / static_cast<std::size_t>(world.size()) *
                                             static_cast<std::size_t>(world.size()));
                    std::vector<float> received(parts.size());
                    all_to_all(world, parts, received, {.deadline = deadline});
                  }});
  return work;
}

class CollectiveFaults : public ::testing::TestWithParam<WorldKind> {
 protected:
  // The steps that rank `victim` goes through.
  int steps_of(const Work& work, int ranks, int victim, std::size_t length) const {
    std::atomic<int> steps = 0;
    run_world(GetParam(), ranks,
              [&](Communicator& world) {
                this_rank = world.rank().value;
                std::vector<float> data(length, 1.0f);
                work.call(world, data, 60s);
              },
              {.deadline = 60s, .on_step = [&](const StepEvent&) {
                 if (this_rank == victim) ++steps;
               }});
    return steps;
  }

  // On a busy machine a healthy rank can miss a short deadline as well; then everybody names it too, rightly. So where
  // somebody else was named, a longer deadline must show the victim.
  void strike(const Work& work, int ranks, int victim, int step, Fault fault, std::size_t length) const {
    if (fault != Fault::sleeps) return strike_once(work, ranks, victim, step, fault, length, 60s);
    for (Duration deadline = 15ms; deadline < 2s; deadline *= 5) {
      others_named = false;
      strike_once(work, ranks, victim, step, fault, length, deadline);
      if (!others_named) return;
    }
    ADD_FAILURE() << work.name << ": somebody else was blamed for rank " << victim << " at step " << step;
  }

  void strike_once(const Work& work, int ranks, int victim, int step, Fault fault, std::size_t length,
                   Duration deadline) const {
    SCOPED_TRACE(work.name + " on " + std::to_string(ranks) + " ranks, rank " + std::to_string(victim) + " at step " +
                 std::to_string(step));
    std::latch others_told(ranks - 1);
    std::mutex mutex;
    std::vector<Failure> told;
    const auto script = [&](Communicator& world) {
      this_world = &world;
      this_rank = world.rank().value;
      step_of_this_rank = 0;
      auto data = std::make_unique<std::vector<float>>(length, 1.0f);
      try {
        work.call(world, *data, deadline);
        // A rank that needed nothing more from the victim has its result, and hears of it in its next call.
        EXPECT_TRUE(this_rank != victim || fault == Fault::sleeps) << "the fault did not strike";
        EXPECT_GT(step, 0) << "nobody can be through before all have come";
        barrier(world, {.deadline = deadline});
        ADD_FAILURE() << to_string(world.rank()) << " heard nothing";
      } catch (const PeerError& error) {
        data.reset();
        if (this_rank == victim) {
          // It overslept, and the others went on.
          EXPECT_EQ(fault, Fault::sleeps) << error.what();
          return;
        }
        {
          const std::lock_guard lock(mutex);
          told.push_back(error.failure());
        }
        EXPECT_TRUE(world.broken());
        const auto before = Deadline::Clock::now();
        std::vector<float> more(4);
        EXPECT_THROW(all_reduce(world, more), PeerError) << "a broken communicator must say so";
        EXPECT_LT(Deadline::Clock::now() - before, 10s);
        others_told.count_down();
        // The others go on without it.
        std::vector<Rank> survivors;
        for (Rank rank : all_ranks(ranks)) {
          if (rank != Rank{victim}) survivors.push_back(rank);
        }
        Communicator rebuilt = world.rebuild(survivors);
        std::vector<float> one{1};
        all_reduce(rebuilt, one);
        EXPECT_EQ(one[0], static_cast<float>(ranks - 1));
      } catch (const Boom&) {
        data.reset();
        EXPECT_EQ(this_rank, victim);
        if (fault == Fault::throws) throw;
      }
    };
    const auto on_step = [&](const StepEvent&) {
      if (this_rank != victim || step_of_this_rank++ != step) return;
      if (fault == Fault::leaves) this_world->transport().depart("has left");
      if (fault != Fault::throws) others_told.wait();
      if (fault != Fault::sleeps) throw Boom();
    };
    const CommunicatorOptions options{.deadline = 60s, .on_step = on_step};
    if (fault == Fault::throws) {
      EXPECT_THROW(run_world(GetParam(), ranks, script, options), Boom);
    } else {
      run_world(GetParam(), ranks, script, options);
    }
    EXPECT_EQ(told.size(), static_cast<std::size_t>(ranks - 1));
    for (const Failure& failure : told) {
      EXPECT_EQ(failure.kind, fault == Fault::sleeps ? FailureKind::late : FailureKind::lost) << failure.message;
      if (fault == Fault::sleeps && failure.ranks != std::vector{Rank{victim}}) {
        others_named = true;
        continue;
      }
      EXPECT_EQ(failure.ranks, std::vector{Rank{victim}}) << failure.message;
      EXPECT_THAT(failure.message, HasSubstr("rank " + std::to_string(victim)));
    }
  }

  // At one in so many of all places, where each takes time.
  void strike_everywhere(Fault fault, const std::vector<int>& worlds, int every = 1) const {
    Sample sample(GetParam().every * every);
    for (int ranks : worlds) {
      if (ranks > GetParam().most_struck) continue;
      for (const Work& work : all_work(GetParam())) {
        // Short ones travel by copy or on the board, long ones are read where they lie.
        for (std::size_t length : {std::size_t{100}, std::size_t{20'000}}) {
          for (int victim = 0; victim < ranks; ++victim) {
            const int steps = steps_of(work, ranks, victim, length);
            EXPECT_GT(steps, 0);
            for (int step = 0; step < steps; ++step) {
              if (sample.takes()) strike(work, ranks, victim, step, fault, length);
            }
          }
        }
      }
    }
  }

  mutable bool others_named = false;
  static thread_local Communicator* this_world;
  static thread_local int this_rank;
  static thread_local int step_of_this_rank;
};

thread_local Communicator* CollectiveFaults::this_world = nullptr;
thread_local int CollectiveFaults::this_rank = -1;
thread_local int CollectiveFaults::step_of_this_rank = 0;

INSTANTIATE_TEST_SUITE_P(Worlds, CollectiveFaults, ::testing::ValuesIn(world_kinds()), name_of);

TEST_P(CollectiveFaults, ARankThatThrowsAtAnyStepEndsTheOthersCalls) { strike_everywhere(Fault::throws, {2, 3, 5}); }
TEST_P(CollectiveFaults, ARankThatLeavesAtAnyStepEndsTheOthersCalls) { strike_everywhere(Fault::leaves, {2, 3}); }
TEST_P(CollectiveFaults, ARankThatSleepsAtAnyStepIsNamedAtTheDeadline) { strike_everywhere(Fault::sleeps, {2, 3}, 3); }

TEST_P(CollectiveFaults, ARankThatNeverComesIsNamed) {
  for (bool leaves : {false, true}) {
    std::latch told(2);
    run_world(GetParam(), 3, [&](Communicator& world) {
      if (world.rank() == Rank{1}) {
        if (!leaves) told.wait();
        return;
      }
      std::vector<float> data(10);
      try {
        all_reduce(world, data, {.deadline = leaves ? Duration(60s) : Duration(20ms)});
        ADD_FAILURE() << "no error";
      } catch (const PeerError& error) {
        // On a busy machine the other one may be late as well.
        EXPECT_THAT(error.ranks(), Contains(Rank{1})) << error.what();
        EXPECT_EQ(error.kind(), leaves ? FailureKind::lost : FailureKind::late);
      }
      told.count_down();
    });
  }
}

TEST_P(CollectiveFaults, ALateRankHearsThatTheOthersGaveUp) {
  std::latch told(1);
  run_world(GetParam(), 2, [&](Communicator& world) {
    std::vector<float> data(10);
    if (world.rank() == Rank{1}) {
      told.wait();
      try {
        all_reduce(world, data);
        ADD_FAILURE() << "no error";
      } catch (const PeerError& error) {
        EXPECT_THAT(error.what(), HasSubstr("broken"));
        EXPECT_EQ(error.ranks(), std::vector{Rank{1}});
      }
      return;
    }
    EXPECT_THROW(all_reduce(world, data, {.deadline = 10ms}), PeerError);
    told.count_down();
  });
}

TEST_P(CollectiveFaults, AWaitEndsWhenAnotherThreadCancels) {
  std::latch waiting(1);
  run_world(GetParam(), 2, [&](Communicator& world) {
    std::vector<float> data(10);
    if (world.rank() == Rank{1}) {
      waiting.wait();
      return world.cancel("had enough");
    }
    const std::jthread bell([&] { waiting.count_down(); });
    try {
      all_reduce(world, data);
      ADD_FAILURE() << "no error";
    } catch (const PeerError& error) {
      // By the cancelling or by the leaving that follows it, whichever was seen first.
      EXPECT_EQ(error.ranks(), std::vector{Rank{1}}) << error.what();
    }
  });
}

TEST_P(CollectiveFaults, AnAbandonedCallBreaksTheCommunicatorAndFreesItsArrays) {
  std::latch abandoned(1);
  run_world(GetParam(), 2, [&](Communicator& world) {
    if (world.rank() == Rank{0}) {
      auto data = std::make_unique<std::vector<float>>(50'000);
      { const Pending pending = start_all_reduce(world, *data); }
      data.reset();
      EXPECT_TRUE(world.broken());
      abandoned.count_down();
      return;
    }
    abandoned.wait();
    EXPECT_THROW(barrier(world), PeerError);
  });
}

TEST_P(CollectiveFaults, ACommunicatorDestroyedBeforeItsCallsEndsThem) {
  run_world(GetParam(), 2, [&](Communicator& world) {
    auto group = std::make_unique<Communicator>(world.split({}));
    if (world.rank() == Rank{1}) return barrier(world);
    std::vector<float> data(50'000);
    Pending pending = start_all_reduce(*group, data);
    group.reset();
    EXPECT_TRUE(pending.ready());
    EXPECT_THROW(pending.wait(), PeerError);
    barrier(world);
  });
}

TEST_P(CollectiveFaults, AnErrorOfAStartedCallComesOutWhereItIsWaitedFor) {
  run_world(GetParam(), 2, [&](Communicator& world) {
    std::vector<float> data(world.rank() == Rank{0} ? 5 : 6);
    std::vector<float> right(5, 1.0f);
    Pending wrong = start_all_reduce(world, data);
    Pending good = start_all_reduce(world, right);
    good.wait();
    EXPECT_EQ(right[0], 2.0f);
    EXPECT_THROW(wrong.wait(), PeerError);
  });
}

TEST_P(CollectiveFaults, TheFirstErrorIsRethrownAndItsRankNamedToTheOthers) {
  for (int ranks : {2, 3, 8}) {
    std::atomic<int> named = 0;
    const auto script = [&](Communicator& world) {
      std::vector<float> data(100);
      for (int round = 0;; ++round) {
        if (round == 5 && world.rank() == Rank{1}) throw Boom();
        try {
          all_reduce(world, data);
        } catch (const PeerError& error) {
          EXPECT_EQ(error.ranks(), std::vector{Rank{1}}) << error.what();
          EXPECT_THAT(error.what(), HasSubstr("boom"));
          ++named;
          throw;
        }
      }
    };
    EXPECT_THROW(run_world(GetParam(), ranks, script), Boom);
    EXPECT_EQ(named, ranks - 1);
  }
}

// While it throws, what it holds tells the others that it is going: they must not be taken for the first.
TEST_P(CollectiveFaults, TheFirstErrorIsRethrownAlsoWhereTheOthersHearOfItEarlier) {
  for (int round = 0; round < 50; ++round) {
    const auto script = [&](Communicator& world) {
      Communicator group = world.split({});
      std::vector<float> data(10'000);
      Pending pending = start_all_reduce(world, data);
      if (world.rank() == Rank{0}) throw Boom();
      barrier(group);
      pending.wait();
    };
    EXPECT_THROW(run_world(GetParam(), 3, script), Boom);
    const auto misuse = [&](Communicator& world) {
      std::vector<float> data(10);
      all_reduce(world, data, {.algorithm = Tree{world.rank() == Rank{1} ? 0 : 2}});
    };
    EXPECT_THROW(run_world(GetParam(), 3, misuse), UsageError);
  }
}

TEST_P(CollectiveFaults, ACommunicatorMayBeMovedAway) {
  run_world(GetParam(), 2, [&](Communicator& world) {
    Communicator own = std::move(world);
    EXPECT_FALSE(world.valid());
    barrier(own);
  });
}

// The others may be in the middle of reading when a rank gives up and frees its array.
TEST_P(CollectiveFaults, ACallCancelledAtAnyMomentLeavesNobodyReading) {
  for (int round = 0; round < 40; ++round) {
    run_world(GetParam(), 2, [&](Communicator& world) {
      std::jthread canceller;
      if (world.rank() == Rank{1}) {
        canceller = std::jthread([&world, round] {
          std::this_thread::sleep_for(std::chrono::microseconds(37 * round));
          world.cancel("enough");
        });
      }
      for (int call = 0;; ++call) {
        auto data = std::make_unique<std::vector<float>>(1 << 19);
        try {
          call % 2 == 0 ? all_reduce(world, *data) : broadcast(world, *data);
        } catch (const PeerError& error) {
          data.reset();
          EXPECT_EQ(error.ranks(), std::vector{Rank{1}}) << error.what();
          break;
        }
      }
    });
  }
}

// What hundreds of ranks know of each other no longer fits a message that is copied when it is sent.
TEST_P(CollectiveFaults, ManyRanksAgree) {
  run_world(GetParam(), GetParam().many, [](Communicator& world) { barrier(world, {.deadline = 60s}); });
}

TEST_P(CollectiveFaults, ARankThatFinishesFirstDisturbsNobody) {
  for (int round = 0; round < 200; ++round) {
    run_world(GetParam(), 4, [&](Communicator& world) {
      std::vector<float> data(round % 2 == 0 ? 10 : 10'000, 1.0f);
      all_reduce(world, data);
      EXPECT_EQ(data[0], 4.0f);
    });
  }
}

TEST_P(CollectiveFaults, TwoThreadsOnOneCommunicatorAreRefused) {
  std::latch inside(1);
  std::atomic<bool> held = false;
  run_world(GetParam(), 2,
            [&](Communicator& world) {
              std::vector<float> data(10);
              if (world.rank() == Rank{1}) {
                inside.wait();
                all_reduce(world, data);
                return;
              }
              std::jthread other([&] {
                std::vector<float> mine(10);
                all_reduce(world, mine);
              });
              // Until the other thread is inside, this one could be taken for the first.
              std::vector<float> intruding(10);
              const Deadline deadline = Deadline::after(60s);
              while (!held.load() && !deadline.passed()) std::this_thread::yield();
              EXPECT_THROW(all_reduce(world, intruding), UsageError);
              inside.count_down();
            },
            {.deadline = 60s, .on_step = [&](const StepEvent&) { held = true; }});
}

}  // namespace
}  // namespace tutti::testing
