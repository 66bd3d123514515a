// Processes that train a population and are killed at every moment that matters: while members train, when a member's
// state is written and no line says so, when lines are written and nothing was made of them, and in between. Whoever
// goes on ends with the same population.
#include <tutti/coordinate/population.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/summing_members.hpp>

namespace tutti {
namespace {

using testing::options_for;
using testing::ScratchFolder;
using testing::Summer;

enum class Moment { training, stored, logged, finished };

// Counts moments of one kind, and ends the process at one of them.
struct Killer {
  Moment moment;
  std::int64_t left;
  std::atomic<std::int64_t> passed = 0;

  void pass(Moment its) {
    if (its == moment && ++passed == left) ::kill(::getpid(), SIGKILL);
  }
};

struct Victim final : Summer {
  Victim(const MemberTask& task, Killer& its) : Summer(task), killer(its) {}
  void train(const MemberTask& task) override {
    Summer::train(task);
    killer.pass(Moment::training);
  }
  Killer& killer;
};

// Goes on with the population in the folder. Whether it came to its end.
bool survives(PopulationOptions options, Moment moment, std::int64_t at) {
  const pid_t child = ::fork();
  if (child == 0) {
    Killer killer{.moment = moment, .left = at};
    options.on_progress = [&](std::int64_t, std::int64_t) { killer.pass(Moment::stored); };
    options.on_member = [&](const MemberRecord&, const MemberScore&) { killer.pass(Moment::logged); };
    options.on_generation = [&](std::int64_t) { killer.pass(Moment::finished); };
    int code = 1;
    try {
      MemberThreads pool(
          {.make = [&](const MemberTask& task) { return std::make_unique<Victim>(task, killer); }, .threads = 2});
      Population population(options);
      population.resume();
      code = population.run(pool).is_finished ? 0 : 1;
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
    }
    ::_exit(code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return false;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return true;
}

// Killed at the first of these moments, then at the second after that, and so on. How often.
std::int64_t kill_until_it_ends(const PopulationOptions& options, Moment moment) {
  std::int64_t kills = 0;
  while (kills < 100 && !survives(options, moment, kills + 1)) ++kills;
  return kills;
}

constexpr Moment kMoments[] = {Moment::training, Moment::stored, Moment::logged, Moment::finished};

TEST(KilledPopulation, EndsTheSameInStep) {
  for (const std::int64_t keep_last : {1, 2}) {
    for (const std::int64_t idle : {0, 8}) {
      for (const Moment moment : kMoments) {
        const strategy::PopulationBased strategy{.population_size = 5, .generations = 4, .idle = idle};
        const ScratchFolder folder;
        PopulationOptions options = options_for(strategy);
        options.folder = folder.path();
        options.keep_last = keep_last;
        EXPECT_GT(kill_until_it_ends(options, moment), 1);
        Population once(options_for(strategy));
        MemberThreads pool(testing::on_threads(1));
        const PopulationResult result = once.run(pool);
        EXPECT_EQ(PopulationLog(folder.path() / "population.jsonl").read(), once.history());
        Population again(options);
        again.resume();
        EXPECT_EQ(again.best(), result.best);
        EXPECT_EQ(again.state_of(*result.best)->weights.at("sum").values<double>()[0], *result.best->score);
      }
    }
  }
}

TEST(KilledPopulation, TrainsAllMembersAtTheirOwnPace) {
  for (const std::int64_t keep_last : {1, 2}) {
    for (const Moment moment : kMoments) {
      const ScratchFolder folder;
      PopulationOptions options =
          options_for({.population_size = 5, .generations = 4, .pace = strategy::Pace::asynchronous, .idle = 0});
      options.folder = folder.path();
      options.keep_last = keep_last;
      EXPECT_GT(kill_until_it_ends(options, moment), 1);
      Population population(options);
      population.resume();
      EXPECT_EQ(population.finished(), 4);
      std::set<MemberKey> seen;
      for (const MemberRecord& record : population.history()) {
        EXPECT_TRUE(record.score) << record.failure;
        EXPECT_TRUE(!record.parent || seen.contains(*record.parent));
        EXPECT_TRUE(seen.insert(record.key()).second);
      }
      EXPECT_EQ(seen.size(), 20U);
      const MemberRecord best = *population.best();
      double sum = 0;
      for (const MemberRecord& record : population.lineage_of(best)) sum += number_in(record.hyper_parameters, "rate");
      EXPECT_NEAR(*best.score, sum, 0.3);
      EXPECT_EQ(population.state_of(best)->weights.at("sum").values<double>()[0], *best.score);
    }
  }
}

}  // namespace
}  // namespace tutti
