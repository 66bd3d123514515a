// Members on the processes of a world, which are ranks on threads here: the same population as on one, whatever fails.
#include <tutti/coordinate/member_processes.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/summing_members.hpp>
#include <support/usage_error.hpp>
#include <support/worlds.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::options_for;
using testing::ScratchFolder;
using testing::Summer;

class MemberProcessesTest : public ::testing::TestWithParam<testing::WorldKind> {
 protected:
  // Rank 0 gets a pool over all, and the others serve it.
  static void on_processes(int ranks, const std::function<MemberThreadsOptions(Communicator&)>& here,
                           const std::function<void(MemberProcesses&)>& f) {
    testing::run_world(GetParam(), ranks, [&](Communicator& world) {
      const MemberThreadsOptions options = here(world);
      if (world.rank() != Rank{0}) return serve_members(world.transport(), options);
      MemberProcesses pool(world.transport(), options);
      f(pool);
      pool.end();
    });
  }

  // Of a population that goes on, where there is a folder.
  static std::vector<MemberRecord> history_on(int ranks, int threads, const PopulationOptions& options) {
    std::vector<MemberRecord> history;
    on_processes(
        ranks, [&](Communicator&) { return testing::on_threads(threads); },
        [&](MemberProcesses& pool) {
          EXPECT_EQ(pool.places(), ranks * threads);
          Population population(options);
          if (!options.folder.empty()) population.resume();
          EXPECT_TRUE(population.run(pool).is_finished);
          history = population.history();
        });
    return history;
  }
};

TEST_P(MemberProcessesTest, TrainTheSamePopulationHoweverManyThereAre) {
  for (const strategy::PopulationBased& strategy : testing::many_populations()) {
    MemberThreads pool(testing::on_threads(1));
    Population alone(options_for(strategy));
    (void)alone.run(pool);
    for (const auto& [ranks, threads] : std::vector<std::pair<int, int>>{{1, 2}, {2, 1}, {3, 2}, {5, 1}})
      EXPECT_EQ(history_on(ranks, threads, options_for(strategy)), alone.history()) << ranks << " " << threads;
  }
}

// Of any type and shape, short and long; of nothing at all.
class Carrier final : public PopulationMember {
 public:
  explicit Carrier(const MemberTask& task) : length_(integer_in(task.hyper_parameters, "length")) {}

  void load(const MemberState& state) override { state_ = state; }
  void train(const MemberTask& task) override {
    if (state_.weights.empty() && length_ > 0) {
      std::vector<float> long_one(static_cast<std::size_t>(length_));
      std::iota(long_one.begin(), long_one.end(), static_cast<float>(task.member));
      state_.weights.add("long", {length_}, std::span<const float>(long_one));
      state_.weights.add({.name = "half", .shape = {2, 3}, .type = DataType::float16});
      state_.weights.add({.name = "none", .shape = {0}, .type = DataType::int32});
      state_.optimizer.add("number", {}, std::span<const double>(&std::as_const(number_), 1));
    }
    if (!state_.weights.empty()) state_.weights.at("long").values<float>()[0] += 1;
  }
  MemberScore evaluate() override {
    return {.value = state_.weights.empty() ? 0.1 : double{state_.weights.at("long").values<float>()[0]},
            .samples = {0.1, -0.0, std::numeric_limits<double>::infinity()},
            .measured = {{"loss", 1.0 / 3}, {"größe", std::numeric_limits<double>::denorm_min()}}};
  }
  MemberState save() override { return state_; }

 private:
  std::int64_t length_;
  double number_ = 0.1;
  MemberState state_;
};

TEST_P(MemberProcessesTest, CarryStatesAndScoresToTheBit) {
  const auto carriers = [](Communicator&) {
    return MemberThreadsOptions{.make = [](const MemberTask& task) { return std::make_unique<Carrier>(task); }};
  };
  for (const std::int64_t length : {0, 1, 1000, 300'000}) {
    PopulationOptions options{.strategy = {.population_size = 3, .generations = 3, .exploit = strategy::None{}},
                              .space = {{{"length", search::Int{0, 1'000'000}}}}};
    options.first.assign(3, {{"length", std::to_string(length)}});
    std::vector<MemberScore> scores;
    options.on_member = [&](const MemberRecord&, const MemberScore& score) { scores.push_back(score); };
    std::vector<MemberState> states;
    const auto train_on = [&](MemberPool& pool) {
      Population population(options);
      (void)population.run(pool);
      states.push_back(*population.state_of(*population.best()));
    };
    MemberThreads alone(
        MemberThreadsOptions{.make = [](const MemberTask& task) { return std::make_unique<Carrier>(task); }});
    train_on(alone);
    on_processes(3, carriers, train_on);
    ASSERT_EQ(scores.size(), 18U);
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(scores[i].value, scores[i + 9].value);
      EXPECT_EQ(scores[i].samples, scores[i + 9].samples);
      EXPECT_TRUE(std::signbit(scores[i + 9].samples[1]));
      EXPECT_EQ(scores[i + 9].measured[1].name, "größe");
      EXPECT_EQ(scores[i + 9].measured[1].value, std::numeric_limits<double>::denorm_min());
    }
    EXPECT_TRUE(states[0].weights == states[1].weights && states[0].optimizer == states[1].optimizer);
    EXPECT_EQ(states[0].weights.empty(), length == 0);
  }
}

TEST_P(MemberProcessesTest, TellOfMembersThatFail) {
  struct Faulty final : Summer {
    using Summer::Summer;
    void train(const MemberTask& task) override {
      if (task.generation == 1 && task.member % 2 == 1) throw std::runtime_error("out of \xff luck\nat some line");
      Summer::train(task);
    }
  };
  on_processes(
      3,
      [](Communicator&) {
        return MemberThreadsOptions{.make = [](const MemberTask& task) { return std::make_unique<Faulty>(task); }};
      },
      [](MemberProcesses& pool) {
        Population population(options_for({.population_size = 6, .generations = 2}));
        EXPECT_TRUE(population.run(pool).is_finished);
        for (const MemberRecord& record : population.history()) {
          EXPECT_EQ(record.score.has_value(), record.generation == 2 || record.member % 2 == 0);
          EXPECT_EQ(record.failure.starts_with("out of "), !record.score) << record.failure;
        }
      });
}

// Trains until it is told to end, and says that it has begun.
struct Patient final : Summer {
  Patient(const MemberTask& task, std::atomic<int>& its_count) : Summer(task), begun(its_count) {}
  void train(const MemberTask& task) override {
    ++begun;
    for (;;) {
      task.go_on();
      std::this_thread::sleep_for(1ms);
    }
  }
  std::atomic<int>& begun;
};

TEST_P(MemberProcessesTest, EndWhatTheyDoWhereTheRunIsInterrupted) {
  for (const int asked : {0, 1, 2}) {  // the rank that is asked to end it
    const ScratchFolder folder;
    std::atomic<int> begun = 0;
    const auto is_asked = [&] { return begun == 3; };
    testing::run_world(GetParam(), 3, [&](Communicator& world) {
      const MemberThreadsOptions here{
          .make = [&](const MemberTask& task) { return std::make_unique<Patient>(task, begun); }};
      const auto is_interrupted = [&, mine = world.rank() == Rank{asked}] { return mine && is_asked(); };
      if (world.rank() != Rank{0}) return serve_members(world.transport(), here, is_interrupted);
      MemberProcesses pool(world.transport(), here);
      PopulationOptions options = options_for({.population_size = 4, .generations = 2});
      options.folder = folder.path();
      options.is_interrupted = [&] { return is_interrupted() || pool.is_interrupted(); };
      EXPECT_FALSE(Population(options).run(pool).is_finished);
      pool.end();
    });
    EXPECT_GE(begun, 3);
    // It goes on with the same result, on another number of them.
    PopulationOptions options = options_for({.population_size = 4, .generations = 2});
    options.folder = folder.path();
    const std::vector<MemberRecord> history = history_on(2, 2, options);
    EXPECT_EQ(history, history_on(1, 1, options_for({.population_size = 4, .generations = 2})));
  }
}

TEST_P(MemberProcessesTest, TakeAnotherPopulationWhereOneWasLeftInTheMiddle) {
  const strategy::PopulationBased strategy{.population_size = 7, .generations = 3};
  MemberThreads alone(testing::on_threads(1));
  Population once(options_for(strategy));
  (void)once.run(alone);
  on_processes(
      3, [](Communicator&) { return testing::on_threads(2); },
      [&](MemberProcesses& pool) {
        for (const int looks : {1, 2, 5, 9}) {
          PopulationOptions left = options_for(strategy, 6);
          int looked = 0;
          left.is_interrupted = [&] { return ++looked >= looks; };
          EXPECT_FALSE(Population(left).run(pool).is_finished);
          Population population(options_for(strategy));
          EXPECT_TRUE(population.run(pool).is_finished);
          EXPECT_EQ(population.history(), once.history());
        }
      });
}

// A member may train for longer than others wait for each other: who has nothing to do hears that all is well.
TEST_P(MemberProcessesTest, WaitForAMemberThatGoesOn) {
  struct Long final : Summer {
    using Summer::Summer;
    void train(const MemberTask& task) override {
      Summer::train(task);
      const auto end = std::chrono::steady_clock::now() + (task.member == 0 ? 2500ms : 0ms);
      while (std::chrono::steady_clock::now() < end) {
        task.go_on();
        std::this_thread::sleep_for(1ms);
      }
    }
  };
  on_processes(
      3,
      [](Communicator&) {
        return MemberThreadsOptions{.make = [](const MemberTask& task) { return std::make_unique<Long>(task); },
                                    .deadline = 2s};
      },
      [](MemberProcesses& pool) {
        Population population(options_for({.population_size = 3, .generations = 1}));
        EXPECT_TRUE(population.run(pool).is_finished);
      });
}

TEST_P(MemberProcessesTest, EndWhereAMemberHangsThere) {
  struct Hanging final : Summer {
    Hanging(const MemberTask& task, std::shared_ptr<std::atomic<bool>> go) : Summer(task), let_go(std::move(go)) {}
    void train(const MemberTask&) override {
      while (!*let_go) std::this_thread::sleep_for(1ms);
    }
    std::shared_ptr<std::atomic<bool>> let_go;
  };
  auto let_go = std::make_shared<std::atomic<bool>>(false);
  std::string said;
  try {
    on_processes(
        3,
        [&](Communicator& world) {
          const bool hangs = world.rank() == Rank{1};
          return MemberThreadsOptions{.make = [=](const MemberTask& task) -> std::unique_ptr<PopulationMember> {
                                        if (hangs) return std::make_unique<Hanging>(task, let_go);
                                        return std::make_unique<Summer>(task);
                                      },
                                      .deadline = 3s};
        },
        [](MemberProcesses& pool) {
          (void)Population(options_for({.population_size = 9, .generations = 9})).run(pool);
        });
  } catch (const Error& error) {
    said = error.what();
  }
  *let_go = true;
  EXPECT_THAT(said, HasSubstr("has not gone on within 3 s"));
}

TEST_P(MemberProcessesTest, NameAProcessThatIsLost) {
  // The others train until it is gone, so that it gets a member, too.
  struct Fatal final : Summer {
    Fatal(const MemberTask& task, Transport* its) : Summer(task), world(its) {}
    void train(const MemberTask& task) override {
      if (world != nullptr) return world->depart("its machine is off");
      for (;;) {
        task.go_on();
        std::this_thread::sleep_for(1ms);
      }
    }
    Transport* world;
  };
  const auto members = [](Communicator& world) {
    Transport* doomed = world.rank() == Rank{2} ? &world.transport() : nullptr;
    return MemberThreadsOptions{.make = [=](const MemberTask& task) { return std::make_unique<Fatal>(task, doomed); },
                                .deadline = 20s};
  };
  std::string said;
  std::atomic<bool> is_told = false;
  try {
    on_processes(3, members, [&](MemberProcesses& pool) {
      try {
        (void)Population(options_for({.population_size = 6, .generations = 3})).run(pool);
      } catch (const PeerError& error) {
        said = error.what();
        is_told = error.kind() == FailureKind::lost && error.ranks() == std::vector{Rank{2}};
        throw;
      }
    });
  } catch (const PeerError&) {
    // The others hear of it, too.
  }
  EXPECT_TRUE(is_told) << said;
  EXPECT_THAT(said, HasSubstr("its machine is off"));
}

TEST_P(MemberProcessesTest, RefuseWhatCannotBe) {
  testing::run_world(GetParam(), 2, [](Communicator& world) {
    const MemberThreadsOptions here = testing::on_threads(1);
    if (world.rank() == Rank{0}) {
      EXPECT_EQ(testing::usage_error([&] { serve_members(world.transport(), here); }),
                "rank 0 begins members, and serves nobody");
    } else {
      EXPECT_EQ(testing::usage_error([&] { MemberProcesses pool(world.transport(), here); }),
                "members are begun by rank 0, and this is rank 1");
    }
    EXPECT_EQ(testing::usage_error([&] { serve_members(world.transport(), {.make = here.make, .threads = 0}); }),
              "expected at least one thread, found 0");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, MemberProcessesTest, ::testing::ValuesIn(testing::world_kinds()), testing::name_of);

}  // namespace
}  // namespace tutti
