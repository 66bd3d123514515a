#include <tutti/coordinate/population.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/summing_members.hpp>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using strategy::MemberPart;
using strategy::PopulationBased;
using testing::many_populations;
using testing::on_threads;
using testing::options_for;
using testing::rates;
using testing::ScratchFolder;
using testing::Summer;
using testing::usage_error;

// As if as many generations had been meant to be from the beginning.
std::vector<MemberRecord> as_of(std::int64_t generations, std::vector<MemberRecord> records) {
  for (MemberRecord& record : records) record.of = generations;
  return records;
}

std::vector<MemberRecord> history_of(const PopulationBased& strategy, int threads, std::uint64_t seed = 5) {
  MemberThreads pool(on_threads(threads));
  Population population(options_for(strategy, seed));
  EXPECT_TRUE(population.run(pool).is_finished);
  return population.history();
}

TEST(Population, IsTheSameOnAnyNumberOfThreads) {
  for (const PopulationBased& strategy : many_populations()) {
    const std::vector<MemberRecord> once = history_of(strategy, 1);
    EXPECT_EQ(once, history_of(strategy, 2));
    EXPECT_EQ(once, history_of(strategy, 5));
    EXPECT_NE(once, history_of(strategy, 1, 6));
  }
}

TEST(Population, KeepsItsSizeItsRangesAndAConsistentLineage) {
  for (const PopulationBased& strategy : many_populations()) {
    MemberThreads pool(on_threads(2));
    Population population(options_for(strategy));
    (void)population.run(pool);
    std::map<MemberKey, MemberRecord> all;
    for (const MemberRecord& record : population.history()) {
      EXPECT_EQ(why_not_in(rates(), record.hyper_parameters), std::nullopt);
      EXPECT_TRUE(all.emplace(record.key(), record).second);
    }
    ASSERT_EQ(std::ssize(all), strategy.population_size * strategy.generations);
    for (const auto& [key, record] : all) {
      if (key.generation == 1) {
        EXPECT_FALSE(record.parent);
        continue;
      }
      const MemberRecord& before = all.at({key.member, key.generation - 1});
      if (!record.parent) {
        // Only members that took over explore.
        EXPECT_EQ(record.hyper_parameters, before.hyper_parameters);
        continue;
      }
      EXPECT_EQ(record.parent->generation, key.generation - 1);
      EXPECT_NE(record.parent->member, key.member);
      EXPECT_GT(*all.at(*record.parent).score, *before.score);
      EXPECT_EQ(record.copied, strategy.copy);
    }
    const std::vector<MemberRecord> line = population.lineage_of(*population.best());
    ASSERT_EQ(std::ssize(line), population.best()->generation);
    for (std::size_t i = 0; i < line.size(); ++i) EXPECT_EQ(line[i].generation, static_cast<std::int64_t>(i) + 1);
  }
}

TEST(Population, GoesOnFromWhatWasTakenOver) {
  // The score is the sum of all that was trained with: that of the line.
  for (const PopulationBased& strategy : many_populations()) {
    MemberThreads pool(on_threads(2));
    Population population(options_for(strategy));
    const MemberRecord best = *population.run(pool).best;
    double sum = 0;
    std::int64_t trained = 0;
    for (const MemberRecord& record : population.lineage_of(best)) {
      if (record.has_copied(MemberPart::weights) && !record.has_copied(MemberPart::optimizer_state)) trained = 0;
      ++trained;
      sum += number_in(record.hyper_parameters, "rate");
    }
    EXPECT_NEAR(*best.score, sum, 0.3);
    const auto state = population.state_of(best);
    EXPECT_EQ(state->weights.at("sum").values<double>()[0], *best.score);
    EXPECT_EQ(state->optimizer.at("trained").values<std::int64_t>()[0], trained);
  }
}

TEST(Population, IsTheSameWhateverStaysInMemory) {
  for (PopulationBased strategy : many_populations()) {
    const std::vector<MemberRecord> once = history_of(strategy, 1);
    const ScratchFolder folder;
    strategy.idle = 0;
    PopulationOptions options = options_for(strategy);
    options.folder = folder.path();
    options.keep_last = 1;
    MemberThreads pool(on_threads(2));
    Population population(options);
    EXPECT_TRUE(population.run(pool).is_finished);
    EXPECT_EQ(population.history(), once);
  }
}

TEST(Population, LetsAUserExplore) {
  PopulationOptions options = options_for({.population_size = 6, .generations = 5});
  std::int64_t calls = 0;
  options.explore = [&](const HyperParameters& values, RandomStream& draws) {
    ++calls;
    HyperParameters next = values;
    next[1].json = std::to_string(1 + draws.below(6));
    return next;
  };
  MemberThreads pool(on_threads(2));
  Population population(options);
  (void)population.run(pool);
  std::int64_t took_over = 0;
  std::map<MemberKey, MemberRecord> all;
  for (const MemberRecord& record : population.history()) {
    all.emplace(record.key(), record);
    if (!record.parent) continue;
    ++took_over;
    EXPECT_EQ(record.hyper_parameters[0], all.at(*record.parent).hyper_parameters[0]);
  }
  EXPECT_GT(took_over, 0);
  EXPECT_EQ(calls, took_over);
  // Values have to be of the space all the same.
  options.explore = [](const HyperParameters&, RandomStream&) -> HyperParameters {
    return {{"rate", "0.5"}, {"kind", "7"}};
  };
  try {
    (void)Population(options).run(pool);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("what explore made of hyper-parameters cannot be: kind: 7 is not in"),
              std::string::npos);
  }
}

TEST(Population, ReturnsTheBestAsItWasEvaluated) {
  for (const bool higher : {true, false}) {
    MemberThreads pool(on_threads(2));
    PopulationOptions options = options_for({.population_size = 5, .generations = 4});
    options.higher_is_better = higher;
    Population population(options);
    const MemberRecord best = *population.run(pool).best;
    for (const MemberRecord& record : population.history())
      EXPECT_TRUE(higher ? *record.score <= *best.score : *record.score >= *best.score);
    EXPECT_EQ(population.state_of(best)->weights.at("sum").values<double>()[0], *best.score);
  }
}

// --- interrupted, killed, damaged ---

TEST(Population, EndsTheSameHoweverOftenItIsInterrupted) {
  const std::vector<PopulationBased> strategies = many_populations();
  for (std::size_t s = 0; s < strategies.size(); s += 3) {
    const PopulationBased& strategy = strategies[s];
    const std::vector<MemberRecord> once = history_of(strategy, 1);
    const ScratchFolder folder;
    std::vector<MemberRecord> history;
    for (int run = 0; run < 200; ++run) {
      MemberThreads pool(on_threads(1 + run % 3));
      PopulationOptions options = options_for(strategy);
      options.folder = folder.path();
      int looks = 0;
      options.is_interrupted = [&] { return ++looks > 4 * (1 + run); };
      Population population(options);
      population.resume();
      const PopulationResult result = population.run(pool);
      history = population.history();
      if (!result.is_finished) continue;
      EXPECT_EQ(population.state_of(*result.best)->weights.at("sum").values<double>()[0], *result.best->score);
      break;
    }
    EXPECT_EQ(history, once);
  }
}

TEST(Population, GoesOnFromTheGenerationBeforeWhereTheLastIsDamaged) {
  const PopulationBased strategy{.population_size = 4, .generations = 6};
  const std::vector<MemberRecord> once = history_of(strategy, 1);
  for (const bool is_log : {true, false}) {
    const ScratchFolder folder;
    PopulationOptions options = options_for(strategy);
    options.folder = folder.path();
    options.strategy.generations = 4;
    {
      MemberThreads pool(on_threads(2));
      (void)Population(options).run(pool);
    }
    if (is_log) {
      const auto log = folder.path() / "population.jsonl";
      std::filesystem::resize_file(log, std::filesystem::file_size(log) - 10);
    } else {
      std::ofstream(folder.path() / "members" / "generation-4-member-2.safetensors") << "damage";
    }
    options.strategy.generations = 6;
    MemberThreads pool(on_threads(2));
    std::vector<std::string> problems;
    options.on_problem = [&](const std::string& sentence) { problems.push_back(sentence); };
    Population population(options);
    population.resume();
    EXPECT_EQ(population.finished(), 3);
    EXPECT_EQ(problems.empty(), is_log);
    (void)population.run(pool);
    EXPECT_EQ(as_of(6, population.history()), once);
    EXPECT_EQ(as_of(6, PopulationLog(folder.path() / "population.jsonl").read()), once);
    for (const MemberRecord& record : population.history()) EXPECT_EQ(record.of, record.generation > 3 ? 6 : 4);
  }
}

// It has what is there.
TEST(Population, GoesOnWithAllThatItHasWhereFewerGenerationsAreAskedFor) {
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    const ScratchFolder folder;
    PopulationOptions options = options_for({.population_size = 3, .generations = 6, .pace = pace});
    options.folder = folder.path();
    MemberThreads pool(on_threads(2));
    Population first(options);
    (void)first.run(pool);
    const std::vector<MemberRecord> all = first.history();
    options.strategy.generations = 2;
    options.on_problem = [](const std::string& sentence) { ADD_FAILURE() << sentence; };
    Population population(options);
    population.resume();
    EXPECT_EQ(population.finished(), 6);
    const PopulationResult result = population.run(pool);
    EXPECT_TRUE(result.is_finished);
    EXPECT_EQ(result.generations, 6);
    EXPECT_EQ(result.best, first.best());
    EXPECT_NE(population.state_of(*result.best), nullptr);
    EXPECT_EQ(PopulationLog(folder.path() / "population.jsonl").read(), all);
  }
}

TEST(Population, GoesOnWithAnotherBestWhereThatOneIsDamaged) {
  // Lower is better, and the sums grow: the best is of the first generation.
  PopulationOptions options = options_for({.population_size = 4, .generations = 6, .exploit = strategy::None{}});
  options.higher_is_better = false;
  MemberThreads pool(on_threads(2));
  Population once(options);
  (void)once.run(pool);
  const ScratchFolder folder;
  options.folder = folder.path();
  options.strategy.generations = 4;
  Population before(options);
  (void)before.run(pool);
  ASSERT_EQ(before.best()->generation, 1);
  std::ofstream(folder.path() / "members" / fmt::format("generation-1-member-{}.safetensors", before.best()->member))
      << "damage";
  options.strategy.generations = 6;
  std::vector<std::string> problems;
  options.on_problem = [&](const std::string& sentence) { problems.push_back(sentence); };
  Population population(options);
  population.resume();
  EXPECT_EQ(problems.size(), 1U);
  const PopulationResult result = population.run(pool);
  EXPECT_EQ(as_of(6, population.history()), once.history());
  EXPECT_GT(result.best->generation, 2);
  EXPECT_EQ(population.state_of(*result.best)->weights.at("sum").values<double>()[0], *result.best->score);
}

TEST(Population, TriesAGenerationAgainInWhichAllHaveFailed) {
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    for (const std::int64_t bad : {1, 2, 3}) {
      const ScratchFolder folder;
      PopulationOptions options = options_for({.population_size = 3, .generations = 3, .pace = pace});
      options.folder = folder.path();
      options.keep_last = 1;
      // At a pace of their own those who fail take over from those who have not come so far, and fail again.
      const auto make = [&](const MemberTask& task) {
        if (task.generation >= bad) throw std::runtime_error("no room");
        return std::make_unique<Summer>(task);
      };
      MemberThreads failing({.make = make, .threads = 3});
      EXPECT_THROW((void)Population(options).run(failing), Error);
      MemberThreads pool(on_threads(2));
      std::vector<std::string> problems;
      options.on_problem = [&](const std::string& sentence) { problems.push_back(sentence); };
      Population population(options);
      population.resume();
      // What they had before they failed is there.
      EXPECT_TRUE(problems.empty()) << problems.front();
      EXPECT_TRUE(population.run(pool).is_finished);
      EXPECT_EQ(population.history().size(), 9U);
      // What failed before others did was taken over from these.
      const bool all_at_once = pace == strategy::Pace::in_step || bad != 2;
      for (const MemberRecord& record : population.history()) {
        if (all_at_once || record.generation == 3) {
          EXPECT_TRUE(record.score) << record.failure;
        }
      }
      if (pace == strategy::Pace::in_step) {
        EXPECT_EQ(population.history(), history_of({.population_size = 3, .generations = 3}, 1));
      }
    }
  }
}

TEST(Population, BeginsAnewWhereItIsNotResumed) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 3, .generations = 4});
  options.folder = folder.path() / "made" / "by itself";
  MemberThreads pool(on_threads(2));
  (void)Population(options).run(pool);
  options.seed = 6;
  Population second(options);
  (void)second.run(pool);
  EXPECT_EQ(PopulationLog(options.folder / "population.jsonl").read(), second.history());
}

// A store knows nothing of who has written what it finds.
TEST(Population, RemovesWhatAnotherPopulationHasLeftInTheFolder) {
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    const ScratchFolder folder;
    PopulationOptions options = options_for({.population_size = 3, .generations = 6, .pace = pace});
    options.folder = folder.path();
    MemberThreads pool(on_threads(2));
    (void)Population(options).run(pool);
    // As a kill leaves it while a state is written.
    std::ofstream(folder.path() / "members" / ".tutti-4711-1.tmp") << "half of it";
    options.strategy.population_size = 2;
    options.strategy.generations = 2;
    (void)Population(options).run(pool);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "members")) {
      const std::string name = entry.path().filename();
      EXPECT_TRUE(name.starts_with("generation-1-") || name.starts_with("generation-2-")) << name;
      EXPECT_EQ(name.find("member-2"), std::string::npos) << name;
    }
  }
}

TEST(Population, RemovesWhatAKillLeftHalfWritten) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 3, .generations = 2});
  options.folder = folder.path();
  MemberThreads pool(on_threads(2));
  (void)Population(options).run(pool);
  const std::filesystem::path half = folder.path() / "members" / ".tutti-4711-1.tmp";
  std::ofstream(half) << "half of it";
  Population population(options);
  population.resume();
  (void)population.run(pool);
  EXPECT_FALSE(std::filesystem::exists(half));
  EXPECT_EQ(population.history().size(), 6U);
}

TEST(Population, GoesOnFromTheGenerationBeforeHoweverFewAreKept) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 4, .generations = 4});
  options.folder = folder.path();
  options.keep_last = 1;
  MemberThreads pool(on_threads(2));
  Population once(options);
  (void)once.run(pool);
  std::ofstream(folder.path() / "members" / "generation-4-member-2.safetensors") << "damage";
  Population population(options);
  population.resume();
  EXPECT_EQ(population.finished(), 3);
  (void)population.run(pool);
  EXPECT_EQ(population.history(), once.history());
}

// --- a pool that others have used ---

TEST(MemberThreads, TellNothingOfWhatWasCancelled) {
  struct Waiting final : Summer {
    Waiting(const MemberTask& task, std::atomic<int>& its_begun, std::atomic<bool>& go)
        : Summer(task), begun(its_begun), let_go(go) {}
    void train(const MemberTask& task) override {
      Summer::train(task);
      if (task.generation > 1) return;
      ++begun;
      begun.notify_all();
      let_go.wait(false);
    }
    std::atomic<int>& begun;
    std::atomic<bool>& let_go;
  };
  std::atomic<int> begun = 0;
  std::atomic<bool> let_go = false;
  MemberThreads pool(
      {.make = [&](const MemberTask& task) { return std::make_unique<Waiting>(task, begun, let_go); }, .threads = 2});
  const HyperParameters values{{"rate", "0.5"}, {"kind", "1"}};
  for (const std::int64_t member : {0, 1}) pool.begin({.member = member, .hyper_parameters = values});
  begun.wait(0);
  pool.cancel();
  pool.begin({.member = 7, .generation = 2, .hyper_parameters = values});
  let_go = true;
  let_go.notify_all();
  const std::optional<MemberReply> reply = pool.next(1min);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->member, 7);
  EXPECT_EQ(reply->failure, "");
  EXPECT_EQ(pool.next(1min), std::nullopt);
  // What is through, and was not asked for, is forgotten, too.
  pool.begin({.member = 8, .generation = 2, .hyper_parameters = values});
  pool.cancel();
  EXPECT_EQ(pool.next(1min), std::nullopt);
}

TEST(Population, TakesAPoolThatAnotherHasLeftInTheMiddle) {
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    const PopulationBased strategy{.population_size = 5, .generations = 4, .pace = pace};
    for (const int threads : {1, 3}) {
      MemberThreads pool(on_threads(threads));
      for (int looks = 1; looks < 12; ++looks) {
        for (const bool throws : {false, true}) {
          PopulationOptions left = options_for(strategy, 6);
          int looked = 0;
          left.is_interrupted = [&] {
            if (++looked < looks) return false;
            if (throws) throw std::runtime_error("enough");
            return true;
          };
          if (throws)
            EXPECT_THROW((void)Population(left).run(pool), std::runtime_error);
          else
            EXPECT_FALSE(Population(left).run(pool).is_finished);
          Population population(options_for(strategy));
          EXPECT_TRUE(population.run(pool).is_finished);
          for (const MemberRecord& record : population.history()) EXPECT_TRUE(record.score) << record.failure;
          EXPECT_EQ(population.history().size(), 20U);
          if (pace == strategy::Pace::in_step) {
            EXPECT_EQ(population.history(), history_of(strategy, 1));
          }
        }
      }
    }
  }
}

TEST(Population, TakesNoRepliesThatItDoesNotAwait) {
  // Before each that is awaited it answers for a member that is not there, for a generation to come, and once more for
  // what it has answered last.
  struct Chatty final : MemberPool {
    std::int64_t places() const override { return threads.places(); }
    void begin(MemberTask task) override { threads.begin(std::move(task)); }
    std::optional<MemberReply> next(Duration wait) override {
      const int turn = said++ % 4;
      if (turn == 0) return MemberReply{.member = 99, .generation = 1, .score = {.value = 1e9}};
      if (turn == 1) return MemberReply{.member = 0, .generation = 99, .score = {.value = 1e9}};
      if (turn == 2) return MemberReply{.member = last.member, .generation = last.generation, .score = {.value = 1e9}};
      std::optional<MemberReply> reply = threads.next(wait);
      if (reply) last = {.member = reply->member, .generation = reply->generation};
      return reply;
    }
    void cancel() override { threads.cancel(); }
    MemberThreads threads{on_threads(2)};
    MemberKey last = {.member = -1, .generation = 1};
    int said = 0;
  };
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    const PopulationBased strategy{.population_size = 5, .generations = 4, .pace = pace};
    Chatty pool;
    Population population(options_for(strategy));
    EXPECT_TRUE(population.run(pool).is_finished);
    EXPECT_EQ(population.history().size(), 20U);
    EXPECT_LT(*population.best()->score, 100);
    if (pace == strategy::Pace::in_step) {
      EXPECT_EQ(population.history(), history_of(strategy, 1));
    }
  }
}

TEST(Population, KeepsAllGenerationsWhereItIsToldTo) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 2, .generations = 5});
  options.folder = folder.path();
  options.keep_last = 1'000'000'000;
  MemberThreads pool(on_threads(2));
  Population population(options);
  (void)population.run(pool);
  for (const MemberRecord& record : population.history()) EXPECT_NO_THROW((void)population.state_of(record));
}

TEST(Population, RefusesToGoOnWithAnotherSpaceOrSize) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 4, .generations = 2});
  options.folder = folder.path();
  MemberThreads pool(on_threads(2));
  (void)Population(options).run(pool);
  const PopulationLog log(folder.path() / "population.jsonl");
  const std::vector<MemberRecord> records = log.read();
  const auto why = [&](std::int64_t members) {
    options.strategy.population_size = members;
    return usage_error([&] { Population(options).resume(); });
  };
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    options.strategy.pace = pace;
    // However few of them there are.
    for (const std::ptrdiff_t count : {8, 2}) {
      log.write({records.begin(), records.begin() + count});
      for (const std::int64_t members : {3, 5})
        EXPECT_NE(why(members).find(fmt::format("population.jsonl was written by a population of 4, and "
                                                "population_size is {}; expected 4, or another folder",
                                                members)),
                  std::string::npos)
            << why(members);
    }
  }
  // Where nobody has written it.
  options.strategy.pace = strategy::Pace::in_step;
  std::vector<MemberRecord> older = records;
  for (MemberRecord& record : older) record.members = 0;
  log.write(older);
  EXPECT_NE(why(3).find("has a member 3, and population_size is 3"), std::string::npos);
  EXPECT_NE(why(5).find("was not written in step by 5 members"), std::string::npos);
  log.write(records);
  options.strategy.population_size = 4;
  options.space.dimensions[0].range = search::Float{2, 3};
  EXPECT_NE(usage_error([&] { Population(options).resume(); }).find("is of another search space: rate: "),
            std::string::npos);
}

TEST(Population, KeepsFewMembersInMemoryAndFewFiles) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 9, .generations = 8, .idle = 2});
  options.folder = folder.path();
  MemberThreads pool(on_threads(2));
  Population population(options);
  const PopulationResult result = population.run(pool);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "members"))
    files += entry.exists() ? 1 : 0;
  EXPECT_LE(files, 9 * 2 + 2);
  EXPECT_TRUE(std::filesystem::exists(
      folder.path() / "members" /
      fmt::format("generation-{}-member-{}.safetensors", result.best->generation, result.best->member)));
}

// Of which a state is a small part, and files are none.
TEST(Population, HoldsMembersThatRunAndAFewThatAreIdle) {
  struct Alive {
    std::atomic<int> members = 0;
    std::atomic<int> most_members = 0;
    std::mutex mutex;
    std::vector<std::weak_ptr<const MemberState>> states;  // that members went on from
    std::size_t most_states = 0;

    void count_states() {
      const std::lock_guard lock(mutex);
      std::erase_if(states, [](const auto& state) { return state.expired(); });
      std::set<const MemberState*> different;
      for (const auto& state : states) different.insert(state.lock().get());
      most_states = std::max(most_states, different.size());
    }
  };
  struct Counted final : Summer {
    Counted(const MemberTask& task, Alive& its) : Summer(task), alive(its) {
      const int now = ++alive.members;
      for (int most = alive.most_members; now > most && !alive.most_members.compare_exchange_weak(most, now);) {
      }
      {
        const std::lock_guard lock(alive.mutex);
        if (task.state) alive.states.push_back(task.state);
      }
      alive.count_states();
    }
    ~Counted() override { --alive.members; }
    Alive& alive;
  };
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    for (const std::int64_t idle : {0, 3}) {
      const ScratchFolder folder;
      PopulationOptions options = options_for({.population_size = 20, .generations = 5, .pace = pace, .idle = idle});
      options.folder = folder.path();
      Alive alive;
      MemberThreads pool(
          {.make = [&](const MemberTask& task) { return std::make_unique<Counted>(task, alive); }, .threads = 2});
      Population population(options);
      (void)population.run(pool);
      EXPECT_EQ(alive.members, 0);
      EXPECT_LE(alive.most_members, 2);
      // One more while it is handed out.
      EXPECT_LE(alive.most_states, static_cast<std::size_t>(2 + 1 + idle));
      EXPECT_LE(population.in_memory(), idle);
    }
  }
}

TEST(MemberStore, HoldsNoMoreThanItMayInMemory) {
  const ScratchFolder folder;
  MemberStore store(folder.path() / "members", 3);
  for (std::int64_t member = 0; member < 20; ++member) {
    MemberState state;
    const auto number = static_cast<double>(member);
    state.weights.add("w", {}, std::span(&number, 1));
    store.put({member, 1}, std::move(state));
    EXPECT_LE(store.in_memory(), 3);
  }
  for (std::int64_t member = 0; member < 20; ++member) {
    EXPECT_EQ(store.get({member, 1})->weights.at("w").values<double>()[0], static_cast<double>(member));
    EXPECT_LE(store.in_memory(), 3);
  }
  store.keep([](MemberKey key) { return key.member == 7; });
  EXPECT_TRUE(store.has({7, 1}));
  EXPECT_FALSE(store.has({8, 1}));
}

// --- members that fail ---

TEST(Population, ReplacesMembersThatFailAndSaysSo) {
  for (const strategy::ExploitStrategy& exploit : std::vector<strategy::ExploitStrategy>{
           strategy::Truncation{}, strategy::Binary{.threshold = 9}, strategy::None{}}) {
    for (const bool throws : {true, false}) {
      struct Faulty final : Summer {
        Faulty(const MemberTask& task, bool is_bad, bool its_way) : Summer(task), bad(is_bad), throws(its_way) {}
        void train(const MemberTask& task) override {
          Summer::train(task);
          if (bad && throws) throw std::runtime_error("out of luck\nat some line");
        }
        MemberScore evaluate() override { return bad ? MemberScore{.value = std::nan("")} : Summer::evaluate(); }
        bool bad;
        bool throws;
      };
      MemberThreads pool({.make =
                              [&](const MemberTask& task) {
                                const bool is_bad = (task.member + task.generation) % 3 == 0;
                                return std::make_unique<Faulty>(task, is_bad, throws);
                              },
                          .threads = 2});
      PopulationOptions options = options_for({.population_size = 5, .generations = 4, .exploit = exploit});
      std::vector<std::string> problems;
      options.on_problem = [&](const std::string& sentence) { problems.push_back(sentence); };
      Population population(options);
      EXPECT_TRUE(population.run(pool).is_finished);
      std::map<MemberKey, MemberRecord> all;
      for (const MemberRecord& record : population.history()) all.emplace(record.key(), record);
      std::size_t failed = 0;
      for (const auto& [key, record] : all) {
        const bool is_bad = (key.member + key.generation) % 3 == 0;
        EXPECT_EQ(record.score.has_value(), !is_bad);
        if (!is_bad) continue;
        ++failed;
        EXPECT_EQ(record.failure, throws ? "out of luck" : "its score is nan");
        const auto next = all.find({key.member, key.generation + 1});
        if (next == all.end()) continue;
        ASSERT_TRUE(next->second.parent);
        EXPECT_TRUE(all.at(*next->second.parent).score);
        EXPECT_EQ(next->second.copied.size(), 3U);
      }
      EXPECT_EQ(problems.size(), failed);
    }
  }
}

TEST(Population, WritesDownWhateverAMemberThatFailsSays) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 3, .generations = 2});
  options.folder = folder.path();
  MemberThreads pool({.make = [](const MemberTask& task) -> std::unique_ptr<PopulationMember> {
    if (task.member == 1 && task.generation == 1) throw std::runtime_error("\xff\xfe gr\xc3\xb6\xc3\x9f\x9f");
    return std::make_unique<Summer>(task);
  }});
  Population population(options);
  EXPECT_TRUE(population.run(pool).is_finished);
  EXPECT_NE(population.history()[1].failure.find(" gr\xc3\xb6\xc3\x9f"), std::string::npos);
  EXPECT_EQ(PopulationLog(folder.path() / "population.jsonl").read(), population.history());
}

TEST(Population, TakesAMemberForFailedWhoseScoresAreNoNumbers) {
  struct Odd final : Summer {
    Odd(const MemberTask& task) : Summer(task), is_odd(task.member == 1 && task.generation == 1) {}  // NOLINT
    MemberScore evaluate() override {
      MemberScore score = Summer::evaluate();
      if (is_odd) score.samples[1] = std::nan("");
      return score;
    }
    bool is_odd;
  };
  const ScratchFolder folder;
  PopulationOptions options =
      options_for({.population_size = 3, .generations = 2, .exploit = strategy::WelchTTest{.significance = 0.5}});
  options.folder = folder.path();
  MemberThreads pool({.make = [](const MemberTask& task) { return std::make_unique<Odd>(task); }});
  Population population(options);
  EXPECT_TRUE(population.run(pool).is_finished);
  EXPECT_EQ(population.history()[1].failure, "one of its scores is nan");
  EXPECT_EQ(PopulationLog(folder.path() / "population.jsonl").read(), population.history());
}

TEST(Population, EndsWhereAllMembersFail) {
  for (const strategy::Pace pace : {strategy::Pace::in_step, strategy::Pace::asynchronous}) {
    MemberThreads pool(
        {.make = [](const MemberTask&) -> std::unique_ptr<PopulationMember> { throw std::runtime_error("no room"); },
         .threads = 2});
    Population population(options_for({.population_size = 3, .generations = 2, .pace = pace}));
    try {
      (void)population.run(pool);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "all 3 members have failed; the last: no room");
    }
  }
}

TEST(MemberThreads, EndWithinTheDeadlineWhereAMemberHangs) {
  struct Hanging final : Summer {
    Hanging(const MemberTask& task, std::shared_ptr<std::atomic<bool>> go) : Summer(task), let_go(std::move(go)) {}
    void train(const MemberTask& task) override {
      while (task.member == 1 && !*let_go) std::this_thread::sleep_for(1ms);
      for (int i = 0; i < 3; ++i) task.go_on();
    }
    std::shared_ptr<std::atomic<bool>> let_go;
  };
  auto let_go = std::make_shared<std::atomic<bool>>(false);
  {
    MemberThreads pool({.make = [let_go](const MemberTask& task) { return std::make_unique<Hanging>(task, let_go); },
                        .threads = 2,
                        .deadline = 2s});
    Population population(options_for({.population_size = 3, .generations = 2}));
    try {
      (void)population.run(pool);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "member 1 has not gone on within 2 s");
    }
  }
  *let_go = true;
}

// --- each at its own pace ---

TEST(AsynchronousPopulation, TrainsAllMembersForAllGenerations) {
  for (const int threads : {1, 3}) {
    const ScratchFolder folder;
    PopulationOptions options =
        options_for({.population_size = 6, .generations = 7, .pace = strategy::Pace::asynchronous});
    options.folder = folder.path();
    std::vector<std::int64_t> generations;
    options.on_generation = [&](std::int64_t generation) { generations.push_back(generation); };
    bool is_finished = false;
    for (int run = 0; run < 100 && !is_finished; ++run) {
      int looks = 0;
      options.is_interrupted = [&] { return ++looks > 9; };
      MemberThreads pool(on_threads(threads));
      Population population(options);
      population.resume();
      is_finished = population.run(pool).is_finished;
      std::map<std::int64_t, std::int64_t> last;
      std::set<MemberKey> seen;
      for (const MemberRecord& record : population.history()) {
        EXPECT_EQ(record.generation, ++last[record.member]);
        EXPECT_TRUE(!record.parent || seen.contains(*record.parent));
        seen.insert(record.key());
      }
      if (!is_finished) continue;
      EXPECT_EQ(seen.size(), 42U);
      EXPECT_NO_THROW((void)population.state_of(*population.best()));
    }
    EXPECT_TRUE(is_finished);
    EXPECT_EQ(generations.back(), 7);
  }
}

TEST(AsynchronousPopulation, GoesOnFromWhatItHasKept) {
  const ScratchFolder folder;
  PopulationOptions options =
      options_for({.population_size = 6, .generations = 8, .pace = strategy::Pace::asynchronous, .idle = 0});
  options.folder = folder.path();
  options.keep_last = 1;
  MemberThreads pool(on_threads(3));
  Population population(options);
  const PopulationResult result = population.run(pool);
  EXPECT_TRUE(result.is_finished);
  for (const MemberRecord& record : population.history()) EXPECT_TRUE(record.score) << record.failure;
  double sum = 0;
  for (const MemberRecord& record : population.lineage_of(*result.best))
    sum += number_in(record.hyper_parameters, "rate");
  EXPECT_NEAR(*result.best->score, sum, 0.3);
  EXPECT_EQ(population.state_of(*result.best)->weights.at("sum").values<double>()[0], *result.best->score);
}

// As a run leaves them; the state of each is its number of generations.
std::vector<MemberRecord> left_behind(const std::filesystem::path& folder, const std::vector<MemberRecord>& records) {
  MemberStore store(folder / "members", 0);
  std::vector<MemberRecord> written = records;
  for (MemberRecord& record : written) {
    record.hyper_parameters = {{"rate", "0.5"}, {"kind", "3"}};
    record.score = static_cast<double>(record.generation);
    if (record.parent) record.copied = {MemberPart::weights, MemberPart::optimizer_state, MemberPart::hyper_parameters};
    MemberState state;
    state.weights.add("sum", {}, std::span<const double>(&*record.score, 1));
    store.put(record.key(), std::move(state));
  }
  PopulationLog(folder / "population.jsonl").write(written);
  return written;
}

std::vector<MemberKey> keys_of(const std::vector<MemberRecord>& records) {
  std::vector<MemberKey> keys;
  for (const MemberRecord& record : records) keys.push_back(record.key());
  return keys;
}

// Who has something from a generation that is done again would have it from another one.
TEST(AsynchronousPopulation, DoesAgainWhatCameFromAMemberThatIsDamaged) {
  const ScratchFolder folder;
  const std::vector<MemberRecord> records =
      left_behind(folder.path(), {{.generation = 1, .member = 0},
                                  {.generation = 1, .member = 1},
                                  {.generation = 1, .member = 2},
                                  {.generation = 2, .member = 0},
                                  {.generation = 2, .member = 2, .parent = MemberKey{0, 1}},
                                  {.generation = 2, .member = 1, .parent = MemberKey{0, 2}},
                                  {.generation = 3, .member = 1},
                                  {.generation = 3, .member = 2, .parent = MemberKey{1, 3}}});
  std::ofstream(folder.path() / "members" / "generation-2-member-0.safetensors") << "damage";
  PopulationOptions options =
      options_for({.population_size = 3, .generations = 5, .pace = strategy::Pace::asynchronous});
  options.folder = folder.path();
  std::vector<std::string> problems;
  options.on_problem = [&](const std::string& sentence) { problems.push_back(sentence); };
  Population population(options);
  population.resume();
  EXPECT_EQ(keys_of(population.history()), (std::vector<MemberKey>{{0, 1}, {1, 1}, {2, 1}, {2, 2}}));
  EXPECT_EQ(problems.size(), 1U);
  MemberThreads pool(on_threads(2));
  EXPECT_TRUE(population.run(pool).is_finished);
  std::set<MemberKey> seen;
  for (const MemberRecord& record : population.history()) {
    EXPECT_TRUE(!record.parent || seen.contains(*record.parent));
    EXPECT_TRUE(seen.insert(record.key()).second);
    // Each line begins with a first generation.
    EXPECT_EQ(population.lineage_of(record).front().generation, 1);
  }
  EXPECT_EQ(seen.size(), 15U);
}

// What would be dropped may be nearly all of it.
TEST(AsynchronousPopulation, IsNotGoneOnFromInStep) {
  const std::vector<MemberRecord> whole = {{.generation = 1, .member = 0},
                                           {.generation = 1, .member = 1},
                                           {.generation = 2, .member = 0},
                                           {.generation = 2, .member = 1}};
  const auto resumed = [&](const std::vector<MemberRecord>& rest) {
    const ScratchFolder folder;
    std::vector<MemberRecord> records = whole;
    records.insert(records.end(), rest.begin(), rest.end());
    (void)left_behind(folder.path(), records);
    PopulationOptions options = options_for({.population_size = 2, .generations = 9});
    options.folder = folder.path();
    Population population(options);
    population.resume();
    return population.finished();
  };
  EXPECT_EQ(resumed({}), 2);
  EXPECT_EQ(resumed({{.generation = 3, .member = 0}}), 2);  // an append that was cut short
  const std::vector<std::vector<MemberRecord>> others = {
      {{.generation = 3, .member = 1}},
      {{.generation = 3, .member = 0}, {.generation = 4, .member = 0}},
      {{.generation = 3, .member = 1}, {.generation = 3, .member = 0}, {.generation = 4, .member = 0}}};
  for (const std::vector<MemberRecord>& rest : others)
    EXPECT_NE(usage_error([&] { (void)resumed(rest); }).find(R"(expected "pace": "asynchronous", or another folder)"),
              std::string::npos);
}

TEST(AsynchronousPopulation, LeavesOutWhatStandsBeforeItsParent) {
  const ScratchFolder folder;
  (void)left_behind(folder.path(), {{.generation = 1, .member = 0},
                                    {.generation = 1, .member = 1},
                                    {.generation = 2, .member = 1, .parent = MemberKey{0, 2}},
                                    {.generation = 2, .member = 0, .parent = MemberKey{1, 2}}});
  PopulationOptions options =
      options_for({.population_size = 2, .generations = 2, .pace = strategy::Pace::asynchronous});
  options.folder = folder.path();
  Population population(options);
  population.resume();
  EXPECT_EQ(keys_of(population.history()), (std::vector<MemberKey>{{0, 1}, {1, 1}}));
  EXPECT_EQ(population.finished(), 1);
}

TEST(Population, SaysWhichLineOfItsLogCannotBeRead) {
  const ScratchFolder folder;
  PopulationOptions options = options_for({.population_size = 3, .generations = 3});
  options.folder = folder.path();
  MemberThreads pool(on_threads(2));
  Population once(options);
  (void)once.run(pool);
  std::vector<MemberRecord> records = once.history();
  const PopulationLog log(folder.path() / "population.jsonl");
  log.write({records.begin(), records.begin() + 4});
  std::ofstream(log.file(), std::ios::app) << "{\"generation\": 2}\n";
  log.append({records.begin() + 5, records.end()});
  std::vector<std::string> problems;
  EXPECT_EQ(log.read(&problems).size(), 4U);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("population.jsonl: line 5 cannot be read, and is left out with what follows"),
            std::string::npos)
      << problems[0];
}

// --- what is refused ---

TEST(Population, RefusesWhatCannotBe) {
  const auto why = [&](const PopulationOptions& options) {
    return usage_error([&] { Population population(options); });
  };
  EXPECT_NE(why(options_for({.population_size = 0})).find("population_size"), std::string::npos);
  EXPECT_NE(why(options_for({.copy = {}})).find("copy: expected at least one part"), std::string::npos);
  EXPECT_NE(why(options_for({.copy = {MemberPart::optimizer_state}})).find("belongs to weights"), std::string::npos);
  PopulationOptions options = options_for({.population_size = 2});
  options.first = {{{"rate", "0.5"}, {"kind", "1"}}};
  EXPECT_EQ(why(options), "expected the first hyper-parameters of each of 2 members, found 1");
  options.first.push_back({{"rate", "5"}, {"kind", "1"}});
  EXPECT_NE(why(options).find("rate: 5 is not in the search space"), std::string::npos);
  EXPECT_EQ(usage_error([&] { MemberThreads none({.make = {}}); }), "members: expected a function that makes one");
  // With a test that needs several scores of each.
  struct Single final : Summer {
    using Summer::Summer;
    MemberScore evaluate() override { return {.value = 1}; }
  };
  MemberThreads singles({.make = [](const MemberTask& task) { return std::make_unique<Single>(task); }});
  Population population(options_for({.population_size = 2, .exploit = strategy::WelchTTest{}}));
  EXPECT_EQ(usage_error([&] { (void)population.run(singles); }),
            "WelchTTest compares at least two scores of a member, and member 0 has 0");
}

}  // namespace
}  // namespace tutti
