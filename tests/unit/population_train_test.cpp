// Populations of graphs, and runs with phases: the same population on any number of threads and processes, and after an
// interruption, and a schedule that was found reaches its score again to the bit.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/json.hpp>
#include <tutti/coordinate/population.hpp>
#include <tutti/coordinate/population_log.hpp>
#include <tutti/train/phase.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::population_train_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using ::testing::HasSubstr;

Json population_run(const std::filesystem::path& output, const Json& strategy = Json::object()) {
  Json run = small_run(output);
  run["train"] = Json::object();
  run["data"]["drop_last"] = true;  // batch norm needs two rows
  run["data"]["split"] = {{"validation", 0.25}};
  run["graph"]["strategy"] = {{"type", "PopulationBased"},
                              {"population_size", 5},
                              {"generations", 4},
                              {"exploit", {{"method", "Truncation"}, {"fraction", 0.4}}},
                              {"explore", {{"method", "Perturbation"}, {"factor", 0.3}, {"resample", 0.2}}}};
  run["graph"]["strategy"].update(strategy);
  run["search"] = Json::parse(R"({"optimizer.lr": {"float": [0.001, 0.5], "scale": "log"},
      "graph.body.drop.p": {"float": [0, 0.5]}, "data.batch_size": {"int": [4, 20]},
      "train.clip_norm": {"categorical": [0, 1, 5]}})");
  return run;
}

std::vector<MemberRecord> records_in(const std::filesystem::path& output) {
  return PopulationLog(output / "population.jsonl").read();
}

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// Of its last evaluation on these rows.
double last_score(const Told& told, const std::string& split, const std::string& metric) {
  double score = std::nan("");
  for (const auto& evaluation : told.of<event::EvaluationEnded>()) {
    if (evaluation.split != split) continue;
    score = evaluation.loss;
    for (const NamedNumber& its : evaluation.metrics) {
      if (its.name == metric) score = its.value;
    }
  }
  return score;
}

// The kinds of populations that tests go through.
std::vector<Json> many_strategies() {
  return {
      Json::object(),
      {{"exploit", {{"method", "Binary"}, {"threshold", 0.01}}}, {"explore", {{"method", "Noise"}, {"sigma", 0.2}}}},
      {{"exploit", {{"method", "WelchTTest"}, {"significance", 0.5}, {"scores", 4}}},
       {"explore", {{"method", "Resample"}}}},
      {{"exploit", {{"method", "None"}}}},
      {{"copy", {"weights"}}, {"generation", {{"steps", 7}}}},
      {{"copy", {"hyper_parameters"}}},
      {{"copy", {"weights", "optimizer_state"}}},
      {{"copy", {"weights", "hyper_parameters"}}},
      {{"inner", data_parallel(2)}, {"generation", {{"epochs", 2}}}}};
}

TEST(PopulationTrain, TheSameOnAnyNumberOfThreads) {
  for (const Json& strategy : many_strategies()) {
    const ScratchFolder scratch;
    std::vector<std::string> logs;
    std::vector<ParameterSet> best;
    for (const int threads : {1, 2, 5}) {
      Json run = population_run(scratch / std::to_string(threads), strategy);
      run["graph"]["strategy"]["threads"] = threads * (strategy.contains("inner") ? 2 : 1);
      const Trained trained = train_small(read_small(run));
      EXPECT_EQ(trained.result.step, 4);
      logs.push_back(text_of(scratch / std::to_string(threads) / "population.jsonl"));
      best.push_back(weights_in(trained.result.last_checkpoint));
    }
    EXPECT_EQ(logs[0], logs[1]) << strategy;
    EXPECT_EQ(logs[0], logs[2]) << strategy;
    EXPECT_TRUE(best[0] == best[1] && best[0] == best[2]) << strategy;
  }
}

TEST(PopulationTrain, TheSameOnAnyNumberOfProcesses) {
  for (const Json& strategy : many_strategies()) {
    const ScratchFolder scratch;
    const Trained once = train_small(read_small(population_run(scratch / "1", strategy)));
    for (const int processes : {2, 3}) {
      const std::filesystem::path output = scratch / std::to_string(processes);
      // Interrupted once, too.
      const auto run = read_small(population_run(output, strategy));
      const Trained first = train_small(run, {.processes = processes, .interrupt_at = 7});
      EXPECT_EQ(first.result.reason, event::RunEnded::Reason::interrupted);
      const Trained trained = train_small(run, {.processes = processes, .resume = true});
      EXPECT_EQ(trained.result.step, 4);
      EXPECT_EQ(text_of(output / "population.jsonl"), text_of(scratch / "1" / "population.jsonl")) << strategy;
      EXPECT_TRUE(weights_in(trained.result.last_checkpoint) == weights_in(once.result.last_checkpoint)) << strategy;
    }
  }
}

TEST(PopulationTrain, TheScheduleOfTheBestReachesItsScoreToTheBit) {
  for (const Json& strategy : many_strategies()) {
    for (const char* schedule : {"constant", "cosine"}) {
      const ScratchFolder scratch;
      Json run = population_run(scratch / "population", strategy);
      run["schedule"] = schedule;
      const Trained trained = train_small(read_small(run));
      ASSERT_TRUE(trained.result.best.value);
      Registry registry;
      add_points(registry);
      const auto replay = read_run(JsonDocument::read_file(scratch / "population" / "best_run.json").root(), registry);
      EXPECT_EQ(static_cast<std::int64_t>(replay.phases.size()), trained.result.best.step);
      const Trained again = train_small(replay);
      EXPECT_EQ(last_score(*again.told, "validation", "accuracy"), *trained.result.best.value) << strategy << schedule;
      EXPECT_EQ(again.result.best.value, trained.result.best.value) << strategy << schedule;
      EXPECT_EQ(again.result.best.step, again.result.step) << strategy << schedule;
      EXPECT_TRUE(weights_in(again.result.last_checkpoint) == weights_in(trained.result.last_checkpoint))
          << strategy << schedule;
    }
  }
}

// Generations that were trained as the last of a few have other rates than as the first of many.
TEST(PopulationTrain, TheScheduleReachesItsScoreAlsoWhereMoreGenerationsWereAskedFor) {
  for (const char* search : {R"({"optimizer.lr": {"float": [0.001, 0.05], "scale": "log"}})",
                             R"({"schedule": {"categorical": ["cosine", "linear", "constant"]}})"}) {
    const ScratchFolder scratch;
    // So slowly that the last ones are the best.
    Json run = population_run(scratch / "run", {{"generations", 3}});
    run["optimizer"]["lr"] = 0.02;
    run["train"]["best_by"] = "loss";
    run["search"] = Json::parse(search);
    run["schedule"] = "cosine";
    (void)train_small(read_small(run));
    run["graph"]["strategy"]["generations"] = 6;
    const Trained first = train_small(read_small(run), {.resume = true, .interrupt_at = 12});
    ASSERT_EQ(first.told->of<event::Warned>().size(), 1U);
    EXPECT_THAT(first.told->of<event::Warned>()[0].sentence, HasSubstr("the learning rate is that of 6"));
    const Trained trained = train_small(read_small(run), {.resume = true});
    EXPECT_EQ(trained.result.step, 6);
    EXPECT_TRUE(first.result.step == 3 || trained.told->of<event::Warned>().empty());
    for (const MemberRecord& record : records_in(scratch / "run")) EXPECT_EQ(record.of, record.generation > 3 ? 6 : 3);
    Registry registry;
    add_points(registry);
    const auto replay = read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry);
    ASSERT_GT(std::ssize(replay.phases), 3);  // an older best would show nothing
    const Trained again = train_small(replay);
    EXPECT_EQ(last_score(*again.told, "validation", "loss"), *trained.result.best.value);
    EXPECT_TRUE(weights_in(again.result.last_checkpoint) ==
                weights_in(scratch / "run" / "checkpoints" / "best.safetensors"));
    // Whoever asks for fewer than there are has them all.
    run["graph"]["strategy"]["generations"] = 2;
    const Trained fewer = train_small(read_small(run), {.resume = true});
    EXPECT_TRUE(fewer.told->of<event::Warned>().empty());
    EXPECT_EQ(fewer.result.best.value, trained.result.best.value);
    EXPECT_EQ(records_in(scratch / "run").size(), 30U);
    EXPECT_EQ(fewer.told->of<event::RunStarted>().at(0).first_step, 6);
  }
}

TEST(PopulationTrain, EndsTheSameHoweverOftenItIsInterrupted) {
  const ScratchFolder scratch;
  const Json plain = population_run(scratch / "plain");
  const Trained once = train_small(read_small(plain));
  Json run = plain;
  run["output"] = (scratch / "often").string();
  Trained last;
  int runs = 0;
  do {
    last = train_small(read_small(run), {.resume = true, .interrupt_at = 4 + 5 * runs});
  } while (++runs < 50 && last.result.reason == event::RunEnded::Reason::interrupted);
  EXPECT_GT(runs, 2);
  EXPECT_EQ(last.result.reason, event::RunEnded::Reason::finished);
  EXPECT_EQ(records_in(scratch / "often"), records_in(scratch / "plain"));
  EXPECT_EQ(text_of(scratch / "often" / "population.jsonl"), text_of(scratch / "plain" / "population.jsonl"));
  EXPECT_TRUE(weights_in(last.result.last_checkpoint) == weights_in(once.result.last_checkpoint));
}

using ToldOfMember = std::tuple<std::int64_t, std::int64_t, double, bool, std::optional<std::int64_t>,
                                std::vector<std::pair<std::string, std::string>>>;

// From a generation on; what was measured beside the score is in no log.
std::vector<ToldOfMember> told_of_members(const Told& told, std::int64_t first) {
  std::vector<ToldOfMember> all;
  for (const auto& its : told.of<event::MemberEvaluated>()) {
    if (its.generation >= first)
      all.emplace_back(its.generation, its.member, its.score, its.is_best, its.parent, its.hyper_parameters);
  }
  return all;
}

// A run that is killed when a generation is in the log, and before anything was made of it; or when the weights of the
// best are written, and its schedule is not.
TEST(PopulationTrain, WritesWhatARunThatWasKilledHasLeftOut) {
  struct Killer final : Observer {
    Killer(std::int64_t its, bool with_checkpoint) : generation(its), has_checkpoint(with_checkpoint) {}
    void on(const Event& event) override {
      const auto* ended = std::get_if<event::GenerationEnded>(&event);
      if (ended != nullptr) is_there = ended->generation == generation;
      if (is_there && (!has_checkpoint || std::holds_alternative<event::CheckpointWritten>(event)))
        throw Error("killed");
    }
    std::int64_t generation;
    bool has_checkpoint;
    bool is_there = false;
  };
  const ScratchFolder scratch;
  const Trained once = train_small(read_small(population_run(scratch / "once")));
  for (const auto& [generation, with_checkpoint] : {std::pair(1, false), std::pair(1, true), std::pair(4, false)}) {
    const std::filesystem::path output = scratch / fmt::format("{}{}", generation, with_checkpoint);
    const auto run = read_small(population_run(output));
    Events events;
    events.add(std::make_shared<Killer>(generation, with_checkpoint));
    EXPECT_THROW((void)train(run, events), Error);
    const Trained trained = train_small(run, {.resume = true});
    EXPECT_EQ(trained.result.step, 4);
    // What it was about to tell is told, also where nothing is left to do.
    EXPECT_EQ(trained.told->of<event::RunStarted>().at(0).first_step, generation - 1);
    const auto generations = trained.told->of<event::GenerationEnded>();
    ASSERT_EQ(std::ssize(generations), 4 - (generation - 1));
    EXPECT_EQ(generations.front().generation, generation);
    EXPECT_EQ(told_of_members(*trained.told, 1), told_of_members(*once.told, generation));
    EXPECT_EQ(text_of(output / "population.jsonl"), text_of(scratch / "once" / "population.jsonl"));
    const auto best = [](const std::filesystem::path& folder) {
      return weights_in(folder / "checkpoints" / "best.safetensors");
    };
    EXPECT_TRUE(best(output) == best(scratch / "once"));
    Json replay = Json::parse(text_of(output / "best_run.json"));
    replay["output"] = (scratch / "once" / "best_run").string();
    EXPECT_EQ(replay, Json::parse(text_of(scratch / "once" / "best_run.json")));
    // The rows to test with are for the end, once.
    EXPECT_EQ(trained.told->of<event::EvaluationEnded>().size(), 1U);
    EXPECT_EQ(trained.told->of<event::EvaluationEnded>()[0].step, 4);
    // And once there, it stays.
    const Trained again = train_small(run, {.resume = true});
    EXPECT_TRUE(again.result.last_checkpoint.empty());
    EXPECT_TRUE(again.told->of<event::EvaluationEnded>().empty());
    EXPECT_TRUE(again.told->of<event::GenerationEnded>().empty());
    EXPECT_TRUE(again.told->of<event::MemberEvaluated>().empty());
  }
}

// Throws as soon as so many members are through with a generation that not all have finished.
struct EndsAfterMembers final : Observer {
  explicit EndsAfterMembers(std::int64_t its) : members(its) {}
  void on(const Event& event) override {
    const auto* went_on = std::get_if<event::GenerationWentOn>(&event);
    if (went_on != nullptr && went_on->through == members) throw Error("killed");
  }
  std::int64_t members;
};

void train_until_members(const tutti::Run& run, std::int64_t members, const std::filesystem::path& from = {}) {
  Events events;
  events.add(std::make_shared<EndsAfterMembers>(members));
  EXPECT_THROW((void)train(run, events, {.from = from}), Error);
}

// A table of the generation that ends after it has all of them.
TEST(PopulationTrain, TellsOfMembersThatAreFurtherThanOthersWhereItGoesOn) {
  const ScratchFolder scratch;
  const auto run = read_small(population_run(scratch / "run", {{"pace", "asynchronous"}, {"threads", 1}}));
  train_until_members(run, 3);
  const std::vector<MemberRecord> before = records_in(scratch / "run");
  ASSERT_EQ(before.size(), 3U);
  const Trained trained = train_small(run, {.resume = true});
  const auto members = told_of_members(*trained.told, 1);
  ASSERT_EQ(members.size(), 20U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::get<0>(members[i]), before[i].generation);
    EXPECT_EQ(std::get<1>(members[i]), before[i].member);
    EXPECT_EQ(std::get<2>(members[i]), before[i].score);
  }
}

TEST(PopulationTrain, GoesOnCountingItsSeconds) {
  const ScratchFolder scratch;
  // The best is an early one.
  Json run = population_run(scratch / "run", {{"exploit", {{"method", "None"}}}, {"generations", 6}});
  run["search"] = Json::parse(R"({"optimizer.lr": {"float": [3, 4]}})");
  run["train"] = {{"best_by", "loss"}, {"clip_norm", 1}};
  const Trained first = train_small(read_small(run));
  ASSERT_LT(first.result.best.step, 6);
  run["graph"]["strategy"]["generations"] = 8;
  const Trained second = train_small(read_small(run), {.resume = true});
  double before = first.told->of<event::GenerationEnded>().back().seconds;
  EXPECT_GE(second.told->of<event::RunStarted>().at(0).first_seconds, before);
  for (const auto& generation : second.told->of<event::GenerationEnded>()) {
    EXPECT_GT(generation.seconds, before);
    before = generation.seconds;
  }
  EXPECT_EQ(second.told->of<event::EvaluationEnded>().at(0).step, 8);
}

// A file of weights that any of them can begin with.
std::filesystem::path first_weights(const std::filesystem::path& scratch) {
  Json run = small_run(scratch / "before");
  run["seed"] = 99;
  return train_small(read_small(run)).result.last_checkpoint;
}

TEST(PopulationTrain, BeginsWithWeightsAndSaysThatItsScheduleDoes) {
  const ScratchFolder scratch;
  const std::filesystem::path from = first_weights(scratch.path());
  const Json run = population_run(scratch / "run", {{"generations", 2}});
  const Trained trained = train_small(read_small(run), {.from = from});
  const auto says = [](const Trained& its, const std::string& what) {
    return std::ranges::any_of(its.told->of<event::Warned>(),
                               [&](const event::Warned& one) { return one.sentence.find(what) != std::string::npos; });
  };
  const std::string how = "to train best_run.json again, begin with the same weights: --from " + from.string();
  EXPECT_TRUE(says(trained, how));
  Json more = run;
  more["graph"]["strategy"]["generations"] = 4;
  const Trained resumed = train_small(read_small(more), {.resume = true});
  EXPECT_TRUE(says(resumed, how));
  EXPECT_THAT(text_of(scratch / "run" / "best_run.json"), HasSubstr("--from " + from.string()));
  Registry registry;
  add_points(registry);
  const auto replay = read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry);
  EXPECT_EQ(last_score(*train_small(replay, {.from = from}).told, "validation", "accuracy"),
            *resumed.result.best.value);
  // Who has begun has weights, and takes no others.
  more["graph"]["strategy"]["generations"] = 5;
  const Trained third = train_small(read_small(more), {.resume = true, .from = from});
  EXPECT_TRUE(says(third, from.string() + " is not used: the population goes on"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "run.1"));
  EXPECT_EQ(third.result.step, 5);
  // Nor need it be of this graph.
  Json other = small_run(scratch / "other");
  other["graph"]["nodes"][0]["units"] = 7;
  const std::filesystem::path others = train_small(read_small(other)).result.last_checkpoint;
  more["graph"]["strategy"]["generations"] = 6;
  EXPECT_EQ(train_small(read_small(more), {.resume = true, .from = others}).result.step, 6);
}

TEST(PopulationTrain, BeginsAgainWithTheWeightsThatItBeganWith) {
  const ScratchFolder scratch;
  const std::filesystem::path from = first_weights(scratch.path());
  const tutti::Run run = read_small(population_run(scratch / "run", {{"generations", 2}}));
  (void)train_small(run, {.from = from, .interrupt_at = 1});
  ASSERT_TRUE(records_in(scratch / "run").empty());
  EXPECT_THAT(usage_error([&] { (void)train_small(run, {.resume = true}); }),
              HasSubstr("members began with weights; expected the same, --from " + from.string()));
  (void)train_small(run, {.resume = true, .from = from});
  (void)train_small(read_small(population_run(scratch / "once", {{"generations", 2}})), {.from = from});
  EXPECT_EQ(text_of(scratch / "run" / "population.jsonl"), text_of(scratch / "once" / "population.jsonl"));
}

// Each at its own pace, some have weights and others do not yet.
TEST(PopulationTrain, GoesOnWithTheFirstWeightsOfThoseThatHaveBegun) {
  const ScratchFolder scratch;
  const std::filesystem::path from = first_weights(scratch.path());
  const std::filesystem::path other = scratch / "other.safetensors";
  std::filesystem::copy_file(from, other);
  const auto begun = [&](const std::string& name, const std::filesystem::path& with) {
    const Json run = population_run(scratch / name, {{"pace", "asynchronous"}, {"threads", 1}, {"generations", 2}});
    train_until_members(read_small(run), 2, with);
    EXPECT_EQ(records_in(scratch / name).size(), 2U);
    return read_small(run);
  };
  const tutti::Run with = begun("with", from);
  const tutti::Run without = begun("without", {});
  const std::string expected = "the others began with weights; expected the same, --from " + from.string();
  for (const std::filesystem::path& wrong : {std::filesystem::path(), other})
    EXPECT_THAT(usage_error([&] { (void)train_small(with, {.resume = true, .from = wrong}); }), HasSubstr(expected));
  EXPECT_THAT(usage_error([&] { (void)train_small(without, {.resume = true, .from = from}); }),
              HasSubstr("the others began without weights; expected no --from"));
  const std::filesystem::path same = scratch / "before" / ".." / std::filesystem::relative(from, scratch.path());
  EXPECT_EQ(train_small(with, {.resume = true, .from = same}).result.step, 2);
  EXPECT_EQ(train_small(without, {.resume = true}).result.step, 2);
}

TEST(PopulationTrain, RefusesWhatNoMemberCanBeBeforeItBegins) {
  const ScratchFolder scratch;
  const Json good = population_run(scratch / "run", {{"generations", 1}});
  (void)train_small(read_small(good));
  const std::string log = text_of(scratch / "run" / "population.jsonl");
  const auto why = [&](const std::function<void(Json&)>& change, const TrainedOptions& options = {}) {
    Json run = good;
    change(run);
    return usage_error([&] { (void)train_small(read_small(run), options); });
  };
  Json other = small_run(scratch / "other");
  other["graph"]["nodes"][0]["units"] = 7;
  const std::filesystem::path from = train_small(read_small(other)).result.last_checkpoint;
  EXPECT_THAT(why([](Json&) {}, {.from = from}), HasSubstr("has not the weights of this graph"));
  EXPECT_THAT(why([](Json& run) {
                run["data"].update({{"drop_last", false}, {"batch_size", 50}});  // of 51 rows
                run["search"].erase("data.batch_size");
              }),
              HasSubstr("the last batch of an epoch has 1 row"));
  EXPECT_THAT(why([](Json& run) {
                run["data"]["batch_size"] = 52;
                run["search"].erase("data.batch_size");
              }),
              HasSubstr("52"));
  EXPECT_THAT(why([](Json& run) {
                run["graph"]["strategy"]["exploit"] = {{"method", "WelchTTest"}};
                run["data"]["split"]["validation"] = 0.02;
              }),
              HasSubstr("there is one row for validation"));
  EXPECT_THAT(why([](Json& run) {
                run["graph"]["strategy"].update({{"threads", 1}, {"inner", data_parallel(2)}});
              }),
              HasSubstr("threads: expected at least the 2 of a member for each of 1 process, found 1"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "run.1"));
  EXPECT_EQ(text_of(scratch / "run" / "population.jsonl"), log);
  // Those that can be are enough.
  Json some = good;
  some["data"]["drop_last"] = false;
  some["search"]["data.batch_size"] = Json::parse(R"({"categorical": [50, 9]})");
  some["graph"]["strategy"]["population_size"] = 8;
  some["output"] = (scratch / "some").string();
  EXPECT_EQ(train_small(read_small(some)).result.step, 1);
}

TEST(PopulationTrain, GoesOnOnlyWithWhatCanBeCompared) {
  const ScratchFolder scratch;
  const Json run = population_run(scratch / "run", {{"generations", 2}});
  (void)train_small(read_small(run));
  const std::string log = text_of(scratch / "run" / "population.jsonl");
  const auto why = [&](const std::function<void(Json&)>& change) {
    Json other = run;
    other["graph"]["strategy"]["generations"] = 3;
    change(other);
    return usage_error([&] { (void)train_small(read_small(other), {.resume = true}); });
  };
  EXPECT_THAT(why([](Json& its) { its["train"]["best_by"] = "loss"; }),
              HasSubstr(R"(train.best_by: the population was trained with "accuracy", and this is "loss")"));
  EXPECT_THAT(why([](Json& its) { its["data"]["split"]["validation"] = 0.3; }),
              HasSubstr("data.split: the population was trained with"));
  EXPECT_THAT(why([](Json& its) { its["data"]["rows"] = 60; }),
              HasSubstr("data.rows: the population was trained with nothing, and this is 60; --output takes"));
  EXPECT_THAT(why([](Json& its) { its["data"]["standardise"] = true; }),
              HasSubstr("data.standardise: the population was trained with false, and this is true"));
  EXPECT_THAT(why([](Json& its) { its["seed"] = 6; }), HasSubstr("seed: the population was trained with 5"));
  EXPECT_THAT(why([](Json& its) {
                its["graph"]["strategy"]["generation"] = {{"epochs", 2}};
              }),
              HasSubstr("graph.strategy.generation: the population was trained with"));
  EXPECT_THAT(why([](Json& its) { its["graph"]["strategy"]["population_size"] = 6; }),
              HasSubstr("graph.strategy.population_size: the population was trained with 5, and this is 6"));
  EXPECT_THAT(why([](Json& its) {
                its["graph"]["strategy"] = {{"type", "Local"}};
                its.erase("search");
                its["train"]["steps"] = 20;
              }),
              HasSubstr("has a population, and this is Local; --from begins with its best weights"));
  EXPECT_THAT(why([](Json& its) {
                its["metrics"] = {{{"name", "top_k"}, {"k", 2}, {"as", "accuracy"}}};
              }),
              HasSubstr(R"(what train.best_by compares: the population was trained with "accuracy", and this is {)"));
  const std::string written = text_of(scratch / "run" / "run.json");
  EXPECT_THAT(why([](Json& its) { its["graph"]["nodes"][0]["units"] = 17; }),
              HasSubstr("has not the weights of this graph: "));
  EXPECT_EQ(text_of(scratch / "run" / "run.json"), written);
  EXPECT_EQ(text_of(scratch / "run" / "population.jsonl"), log);
  // What may change is said.
  Json other = run;
  other["graph"]["strategy"]["generations"] = 3;
  other["graph"]["strategy"]["explore"] = {{"method", "Resample"}};
  other["data"].update({{"batch_size", 11}, {"shuffle", false}});
  const Trained trained = train_small(read_small(other), {.resume = true});
  EXPECT_EQ(trained.result.step, 3);
  ASSERT_EQ(trained.told->of<event::Warned>().size(), 1U);
  EXPECT_THAT(trained.told->of<event::Warned>()[0].sentence,
              HasSubstr(": data.batch_size, data.shuffle, graph.strategy.explore"));
}

// Where it lies now is where it is read from.
TEST(PopulationTrain, GoesOnWithAFileThatWasMovedAndNotWithAnother) {
  const ScratchFolder scratch;
  std::string rows = "a,b,c,d,kind\n";
  RandomStream draws({4});
  for (int i = 0; i < 80; ++i) {
    for (int k = 0; k < 4; ++k) rows += fmt::format("{},", draws.normal() + (k == i % 3 ? 2 : 0));
    rows += fmt::format("{}\n", "xyz"[i % 3]);
  }
  const auto file_in = [&](const char* folder) {
    std::filesystem::create_directories(scratch / folder);
    return scratch / folder / "points.csv";
  };
  std::ofstream(file_in("first")) << rows;
  Json run = population_run(scratch / "run", {{"generations", 1}});
  run["data"] = {{"source", "csv"},
                 {"file", file_in("first").string()},
                 {"label", "kind"},
                 {"batch_size", 10},
                 {"drop_last", true}};
  run["data"]["split"] = {{"validation", 0.2}};
  run["graph"]["inputs"] = {{"features", {4}}};
  run["graph"]["nodes"][0]["inputs"] = {"features"};
  (void)train_small(read_small(run));
  run["graph"]["strategy"]["generations"] = 2;
  run["data"]["file"] = file_in("second").string();
  std::filesystem::copy_file(file_in("first"), file_in("second"));
  EXPECT_THAT(usage_error([&] { (void)train_small(read_small(run), {.resume = true}); }),
              HasSubstr("data.file: the population was trained with \"" + file_in("first").string()));
  std::filesystem::remove(file_in("first"));
  EXPECT_EQ(train_small(read_small(run), {.resume = true}).result.step, 2);
}

// Rows for validation that nobody split off.
TEST(PopulationTrain, ComparesByRowsThatTheSourceHasForIt) {
  const ScratchFolder scratch;
  Json run = population_run(scratch / "run", {{"generations", 2}});
  run["data"].erase("split");
  run["data"]["source"] = "judged";
  const auto read_judged = [&](bool says_so, bool has_them) {
    Registry points;
    add_points(points);
    const DataSource source = points.data_sources.at(JsonDocument::parse(R"("points")").root())
                                  .resolve(Options(JsonDocument::parse("{}").root()));
    Registry registry;
    registry.data_sources.add({.name = "judged", .resolve = [=](const Options&) {
                                 DataSource judged = source;
                                 judged.has_validation = says_so;
                                 judged.open = [=] {
                                   DataSplits data = source.open();
                                   if (has_them) data.validation = std::exchange(data.test, nullptr);
                                   return data;
                                 };
                                 return judged;
                               }});
    return read_small(run, registry);
  };
  EXPECT_THAT(usage_error([&] { (void)read_judged(false, true); }), HasSubstr("there are none"));
  EXPECT_THAT(usage_error([&] { (void)train_small(read_judged(true, false)); }),
              HasSubstr("the source was to have rows for validation of its own, and has none"));
  const Trained trained = train_small(read_judged(true, true));
  EXPECT_EQ(trained.result.step, 2);
  EXPECT_EQ(trained.result.best.of, "validation accuracy");
  run["data"]["split"] = {{"validation", 0.25}};
  EXPECT_THAT(usage_error([&] { (void)read_judged(true, true); }),
              HasSubstr("data.split.validation: the source has rows for validation of its own"));
}

TEST(PopulationTrain, TakesASubgraphThatSaysThatItIsTrainedAsTheWholeIs) {
  const ScratchFolder scratch;
  const Json run = population_run(scratch / "run", {{"generations", 2}, {"inner", data_parallel(2)}});
  (void)train_small(read_small(run));
  Json twice = run;
  twice["output"] = (scratch / "twice").string();
  twice["graph"]["nodes"][1]["strategy"] = run["graph"]["strategy"];
  const Trained trained = train_small(read_small(twice));
  EXPECT_EQ(text_of(scratch / "twice" / "population.jsonl"), text_of(scratch / "run" / "population.jsonl"));
  Registry registry;
  add_points(registry);
  const auto replay = read_run(JsonDocument::read_file(scratch / "twice" / "best_run.json").root(), registry);
  EXPECT_EQ(last_score(*train_small(replay).told, "validation", "accuracy"), *trained.result.best.value);
}

// --- values that are changed take effect ---

// Of rows of images of one channel, with a network that augments and drops.
Json image_run(const std::filesystem::path& output) {
  Json run = population_run(output);
  run["data"] = Json::parse(R"({"source": "pictures", "batch_size": 10, "augment": {"shift": 1},
      "split": {"validation": 0.25, "shuffle": false}})");
  run["graph"] = Json::parse(R"({"inputs": {"image": [1, 4, 4]}, "nodes": [
      {"id": "flat", "op": "flatten", "inputs": ["image"]},
      {"id": "hidden", "op": "linear", "inputs": ["flat"], "units": 6},
      {"id": "drop", "op": "dropout", "inputs": ["hidden"], "p": 0.2},
      {"id": "logits", "op": "linear", "inputs": ["drop"], "units": 3}], "outputs": ["logits"]})");
  run["loss"] = {{"name", "cross_entropy"}, {"label_smoothing", 0.05}};
  run["optimizer"] = Json::parse(R"({"name": "sgd", "lr": 0.05, "momentum": 0.9})");
  run["train"] = {{"clip_norm", 0.5}};
  return run;
}

tutti::Run read_pictures(const Json& document) {
  Registry registry;
  registry.data_sources.add(
      {.name = "pictures", .resolve = [](const Options&) {
         return DataSource{
             .description = {.inputs = {{"image", {.shape = {1, 4, 4}}}},
                             .target = {.shape = {}, .type = ValueType::int64},
                             .classes = 3},
             .open =
                 [] {
                   RandomStream draws({8});
                   torch::Tensor images = torch::empty({60, 1, 4, 4});
                   torch::Tensor kinds = torch::empty({60}, torch::kInt64);
                   for (std::int64_t i = 0; i < images.numel(); ++i)
                     images.data_ptr<float>()[i] = static_cast<float>(draws.normal());
                   for (std::int64_t i = 0; i < 60; ++i)
                     kinds.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(draws.below(3));
                   return DataSplits{.train = std::make_shared<TensorDataset>(std::vector{images}, kinds)};
                 },
             .has_test = false};
       }});
  return read_small(document, registry);
}

TEST(PopulationTrain, TrainsAMemberAsARunThatHasItsValues) {
  for (
      const char* search :
      {R"({"optimizer.lr": {"float": [0.1, 0.5], "scale": "log"}})", R"({"optimizer.momentum": {"float": [0, 0.6]}})",
       R"({"optimizer.name": {"categorical": ["adam", "rmsprop"]}, "optimizer.momentum": {"conditional": {"float": [0, 0.5]},
            "when": {"optimizer.name": "rmsprop"}}})",
       R"({"schedule": {"categorical": ["cosine", {"name": "linear"}]}})", R"({"graph.drop.p": {"float": [0.4, 0.6]}})",
       R"({"data.batch_size": {"int": [4, 8]}})", R"({"train.clip_norm": {"float": [0.01, 0.1]}})",
       R"({"train.accumulate": {"int": [2, 3]}})", R"({"loss.label_smoothing": {"float": [0.2, 0.6]}})",
       R"({"data.augment": {"categorical": [{"flip": true}, {"flip": true, "shift": 2}]}})"}) {
    const ScratchFolder scratch;
    Json run = image_run(scratch / "population");
    run["graph"]["strategy"] = population_run(scratch / "population")["graph"]["strategy"];
    run["graph"]["strategy"].update({{"population_size", 1}, {"generations", 1}, {"generation", {{"epochs", 2}}}});
    run["search"] = Json::parse(search);
    const Trained trained = train_small(read_pictures(run));
    const std::vector<MemberRecord> records = records_in(scratch / "population");
    ASSERT_EQ(records.size(), 1U) << search;
    // Alone, with the member's seed, and its values or those of the file.
    const auto weights_with = [&](const char* name, const HyperParameters& values) {
      Json alone = image_run(scratch / name);
      alone["seed"] = member_seed(5, 0);
      alone["graph"].erase("strategy");
      alone.erase("search");
      alone["train"]["epochs"] = 2;
      JsonDocument document = JsonDocument::parse(alone.dump());
      if (find_in(values, "optimizer.name") != nullptr) document = document.without("optimizer.momentum");
      for (const HyperParameter& value : values) document = document.with(value.path, value.json);
      return weights_in(train_small(read_pictures(document.root().raw())).result.last_checkpoint);
    };
    const ParameterSet member = weights_in(trained.result.last_checkpoint);
    EXPECT_TRUE(member == weights_with("same", records[0].hyper_parameters)) << search;
    EXPECT_FALSE(member == weights_with("file", {})) << search;
  }
}

// All members failed in the first one, or it was killed before there was more than a log.
TEST(PopulationTrain, BeginsAnewInAFolderThatHasALogAlone) {
  const ScratchFolder scratch;
  for (const bool resume : {false, true}) {
    std::filesystem::create_directories(scratch / "run");
    std::ofstream(scratch / "run" / "population.jsonl") << R"({"generation": 1, "mem)";
    std::filesystem::create_directories(scratch / "run" / "members");
    std::ofstream(scratch / "run" / "members" / "generation-1-member-7.safetensors") << "left over";
    const Trained trained =
        train_small(read_small(population_run(scratch / "run", {{"generations", 1}})), {.resume = resume});
    EXPECT_EQ(trained.result.step, 1);
    EXPECT_FALSE(std::filesystem::exists(scratch / "run" / "members" / "generation-1-member-7.safetensors"));
    EXPECT_FALSE(std::filesystem::exists(scratch / "run.1"));
    std::filesystem::remove_all(scratch / "run");
  }
}

TEST(PopulationTrain, LeavesAScheduleThatCanBeReadHoweverLongItWasMeantToBe) {
  const ScratchFolder scratch;
  for (const Json& length : {Json{{"generations", 2'000'000'000}},
                             Json{{"generations", 1'000'000}, {"generation", {{"steps", 2'000'000}}}}}) {
    Json run = population_run(scratch / "run", length);
    run["schedule"] = "cosine";
    Registry registry;
    add_points(registry);
    RunPhase phase{.steps = 5};
    const std::int64_t each = length.contains("generation") ? 2'000'000 : 1;
    phase.of = length["generations"].get<std::int64_t>() * each;
    phase.after = *phase.of - each;
    if (each == 1) phase = {.epochs = 1, .after = phase.after, .of = phase.of};
    const std::string text = to_json(std::vector{phase}).dump();
    EXPECT_EQ(to_json(phases_from_json(JsonDocument::parse(text).root())).dump(), text);
  }
  const Json run = population_run(scratch / "run", {{"generations", 2'000'000'000}});
  const Trained trained = train_small(read_small(run), {.interrupt_at = 40});
  EXPECT_EQ(trained.result.reason, event::RunEnded::Reason::interrupted);
  ASSERT_TRUE(trained.result.best.value);
  Registry registry;
  add_points(registry);
  const auto replay = read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry);
  EXPECT_EQ(last_score(*train_small(replay).told, "validation", "accuracy"), *trained.result.best.value);
}

TEST(PopulationTrain, SaysThatMembersAreNotTraced) {
  const ScratchFolder scratch;
  const Trained trained =
      train_small(read_small(population_run(scratch / "run", {{"generations", 1}})), {.trace = true});
  ASSERT_EQ(trained.told->of<event::Warned>().size(), 1U);
  EXPECT_THAT(trained.told->of<event::Warned>()[0].sentence, HasSubstr("--trace"));
}

TEST(PopulationTrain, ComparesByALossThatIsBetterWhenItIsLower) {
  const ScratchFolder scratch;
  for (const Json& exploit : {Json{{"method", "WelchTTest"}, {"significance", 0.5}, {"scores", 4}},
                              Json{{"method", "Truncation"}, {"fraction", 0.4}}}) {
    Json run = population_run(scratch / exploit["method"].get<std::string>(), {{"exploit", exploit}});
    run["train"]["best_by"] = "loss";
    const Trained trained = train_small(read_small(run));
    std::map<MemberKey, MemberRecord> all;
    std::int64_t took_over = 0;
    for (const MemberRecord& record : records_in(run["output"].get<std::string>())) {
      EXPECT_GE(*record.score, *trained.result.best.value);
      all.emplace(record.key(), record);
      if (!record.parent) continue;
      ++took_over;
      EXPECT_LT(*all.at(*record.parent).score, *all.at({record.member, record.generation - 1}).score);
    }
    EXPECT_GT(took_over, 0);
  }
}

// What leads to the best goes through all that members may do.
TEST(PopulationTrain, ReplaysLinesWithAllThatHappens) {
  Json failing;
  failing["search"] = Json::parse(R"({"optimizer.lr": {"float": [1e-3, 1e6], "scale": "log"}})");
  failing["metrics"] = Json::array();
  Json accumulating;
  accumulating["search"] = Json::parse(R"({"train.accumulate": {"int": [1, 4]}, "data.batch_size": {"int": [4, 10]}})");
  Json optimizers;
  optimizers["search"] = Json::parse(R"({"optimizer.name": {"categorical": ["sgd", "adam", "rmsprop"]},
      "optimizer.lr": {"float": [0.001, 0.1], "scale": "log"},
      "optimizer.momentum": {"conditional": {"float": [0, 0.9]}, "when": {"optimizer.name": ["sgd", "rmsprop"]}}})");
  for (const Json& change : {failing, accumulating, optimizers}) {
    for (const Json& copy : {Json{"weights"}, Json{"weights", "hyper_parameters"},
                             Json{"weights", "optimizer_state", "hyper_parameters"}}) {
      const ScratchFolder scratch;
      Json run = population_run(scratch / "run", {{"population_size", 6}, {"generations", 5}, {"copy", copy}});
      run.update(change);
      const Trained trained = train_small(read_small(run));
      Registry registry;
      add_points(registry);
      const Trained again =
          train_small(read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry));
      EXPECT_TRUE(weights_in(again.result.last_checkpoint) == weights_in(trained.result.last_checkpoint))
          << change << copy;
    }
  }
}

// At a pace of their own others may have taken over from what is damaged later.
TEST(PopulationTrain, ReplaysWhatWasDoneAgainAfterDamage) {
  for (const std::int64_t member : {0, 1, 2}) {
    const ScratchFolder scratch;
    Json run = population_run(scratch / "run", {{"pace", "asynchronous"}, {"generations", 3}, {"threads", 1}});
    run["checkpoints"] = {{"keep_last", 9}};
    (void)train_small(read_small(run));
    std::ofstream(scratch / "run" / "members" / fmt::format("generation-3-member-{}.safetensors", member)) << "damage";
    std::ofstream(scratch / "run" / "members" / fmt::format("generation-2-member-{}.safetensors", member)) << "damage";
    run["graph"]["strategy"]["generations"] = 5;
    const Trained trained = train_small(read_small(run), {.resume = true});
    EXPECT_EQ(trained.result.step, 5);
    Registry registry;
    add_points(registry);
    const Trained again =
        train_small(read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry));
    EXPECT_EQ(last_score(*again.told, "validation", "accuracy"), *trained.result.best.value);
    EXPECT_TRUE(weights_in(again.result.last_checkpoint) ==
                weights_in(scratch / "run" / "checkpoints" / "best.safetensors"));
  }
}

// A value may need one of another dimension, which is searched, too.
TEST(PopulationTrain, SearchesValuesThatNeedEachOther) {
  const ScratchFolder scratch;
  Json schedules = population_run(scratch / "schedules", {{"generations", 2}});
  schedules["schedule"] = {{"name", "cosine"}};
  schedules["search"] = Json::parse(R"({
      "schedule.every": {"conditional": {"int": [1, 5]}, "when": {"schedule.name": "step"}},
      "schedule.name": {"categorical": ["cosine", "step"]}})");
  Json nesterov = population_run(scratch / "nesterov", {{"generations", 2}});
  nesterov["optimizer"] = {{"name", "sgd"}, {"lr", 0.1}};
  nesterov["search"] = Json::parse(R"({"optimizer.nesterov": {"categorical": [true, false]},
      "optimizer.momentum": {"float": [0.5, 0.99]}})");
  for (const Json& run : {schedules, nesterov}) {
    (void)train_small(read_small(run));
    for (const MemberRecord& record : records_in(run["output"].get<std::string>()))
      EXPECT_TRUE(record.score) << record.failure;
  }
}

TEST(PopulationTrain, TellsOfMembersGenerationsAndTheBest) {
  const ScratchFolder scratch;
  const Trained trained = train_small(read_small(population_run(scratch / "run")));
  const auto members = trained.told->of<event::MemberEvaluated>();
  const auto generations = trained.told->of<event::GenerationEnded>();
  ASSERT_EQ(members.size(), 20U);
  ASSERT_EQ(generations.size(), 4U);
  EXPECT_EQ(trained.told->of<event::RunStarted>().at(0).unit, "generation");
  double best = 0;
  for (const auto& member : members) best = std::max(best, member.score);
  EXPECT_EQ(*trained.result.best.value, best);
  EXPECT_EQ(trained.result.best.of, "validation accuracy");
  for (const auto& generation : generations) {
    double its_best = 0;
    std::int64_t took_over = 0;
    for (const auto& member : members) {
      if (member.generation != generation.generation) continue;
      its_best = std::max(its_best, member.score);
      took_over += member.parent ? 1 : 0;
    }
    EXPECT_EQ(generation.best_score, its_best);
    EXPECT_EQ(generation.took_over, took_over);
  }
  // The best is evaluated with rows to test with once, at the end.
  EXPECT_EQ(trained.told->of<event::EvaluationEnded>().size(), 1U);
}

TEST(PopulationTrain, MayChangeTheOptimizerAndWhatBelongsToIt) {
  const ScratchFolder scratch;
  Json run = population_run(scratch / "run", {{"population_size", 6}, {"generations", 5}});
  run["search"] = Json::parse(R"({"optimizer.name": {"categorical": ["sgd", "adam", "rmsprop"]},
      "optimizer.lr": {"float": [0.001, 0.1], "scale": "log"},
      "optimizer.momentum": {"conditional": {"float": [0, 0.9]}, "when": {"optimizer.name": ["sgd", "rmsprop"]}},
      "optimizer.beta1": {"conditional": {"float": [0.5, 0.99], "scale": "reverse_log"}, "when": {"optimizer.name": "adam"}},
      "schedule": {"categorical": ["constant", {"name": "cosine", "warmup": 3}]}})");
  const Trained trained = train_small(read_small(run));
  std::set<std::string> names;
  for (const MemberRecord& record : records_in(scratch / "run")) {
    EXPECT_TRUE(record.score) << record.failure;
    names.insert(text_in(record.hyper_parameters, "optimizer.name"));
  }
  EXPECT_GE(names.size(), 2U);
  Registry registry;
  add_points(registry);
  const Trained again =
      train_small(read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry));
  EXPECT_EQ(last_score(*again.told, "validation", "accuracy"), *trained.result.best.value);
  // What it wrote of itself is the same run.
  const Trained third =
      train_small(read_run(JsonDocument::read_file(scratch / "run" / "best_run" / "run.json").root(), registry));
  EXPECT_EQ(last_score(*third.told, "validation", "accuracy"), *trained.result.best.value);
}

TEST(PopulationTrain, SearchesNetworksOfAnyShapeWhereNobodyTakesOver) {
  const ScratchFolder scratch;
  Json run = population_run(scratch / "run", {{"exploit", {{"method", "None"}}}, {"generations", 2}});
  run["search"] = Json::parse(R"({"graph.hidden.units": {"int": [2, 40]}})");
  const Trained trained = train_small(read_small(run));
  ASSERT_TRUE(trained.result.best.value);
  Registry registry;
  add_points(registry);
  const Trained again =
      train_small(read_run(JsonDocument::read_file(scratch / "run" / "best_run.json").root(), registry));
  EXPECT_EQ(last_score(*again.told, "validation", "accuracy"), *trained.result.best.value);
  run["graph"]["strategy"]["exploit"] = {{"method", "Truncation"}, {"fraction", 0.2}};
  EXPECT_THAT(usage_error([&] { (void)read_small(run); }),
              HasSubstr("search.graph.hidden.units: it changes the shape of weights"));
  // Buffers are weights, too.
  run["search"] = Json::parse(R"({"graph.body.norm.op": {"categorical": ["batch_norm", "layer_norm"]}})");
  EXPECT_THAT(usage_error([&] { (void)read_small(run); }),
              HasSubstr("search.graph.body.norm.op: it changes the shape of weights, or which there are"));
  run["graph"]["strategy"]["exploit"] = {{"method", "None"}};
  EXPECT_EQ(train_small(read_small(run)).result.step, 2);
}

TEST(PopulationTrain, TakesOverTheShapeWhereAMemberHasFailed) {
  const ScratchFolder scratch;
  Json run =
      population_run(scratch / "run", {{"exploit", {{"method", "None"}}}, {"generations", 3}, {"population_size", 8}});
  run["search"] = Json::parse(R"({"graph.hidden.units": {"int": [2, 40]},
      "optimizer.lr": {"float": [1e-3, 1e6], "scale": "log"}})");
  run["metrics"] = Json::array();
  (void)train_small(read_small(run));
  std::map<MemberKey, MemberRecord> all;
  std::int64_t failed = 0;
  for (const MemberRecord& record : records_in(scratch / "run")) {
    all.emplace(record.key(), record);
    if (record.generation == 1) continue;
    const MemberRecord& before = all.at({record.member, record.generation - 1});
    EXPECT_EQ(record.parent.has_value(), !before.score);
    if (!record.parent) continue;
    ++failed;
    EXPECT_EQ(record.hyper_parameters, all.at(*record.parent).hyper_parameters);
    EXPECT_TRUE(record.score) << record.failure;
  }
  EXPECT_GT(failed, 0);
}

TEST(PopulationTrain, GoesOnWithoutMembersThatGoAstray) {
  const ScratchFolder scratch;
  Json run = population_run(scratch / "run", {{"population_size", 8}, {"generations", 3}});
  run["search"] = Json::parse(R"({"optimizer.lr": {"float": [1e-3, 1e6], "scale": "log"}})");
  run["metrics"] = Json::array();
  const Trained trained = train_small(read_small(run));
  std::int64_t failed = 0;
  for (const auto& generation : trained.told->of<event::GenerationEnded>()) failed += generation.failed;
  EXPECT_GT(failed, 0);
  EXPECT_EQ(static_cast<std::int64_t>(trained.told->of<event::Warned>().size()), failed);
  EXPECT_TRUE(std::isfinite(*trained.result.best.value));
}

TEST(PopulationTrain, RefusesByName) {
  const ScratchFolder scratch;
  const auto why = [&](const std::function<void(Json&)>& change) {
    Json run = population_run(scratch / "run");
    change(run);
    return usage_error([&] { (void)read_small(run); });
  };
  const auto searched = [&](const char* path, const char* range) {
    return why([&](Json& run) { run["search"] = {{path, Json::parse(range)}}; });
  };
  const char* numbers = R"({"float": [0, 1]})";
  EXPECT_THAT(searched("optimizer.lrr", numbers),
              HasSubstr("search.optimizer.lrr: 0 cannot be: optimizer: unknown key"));
  EXPECT_THAT(searched("graph.dropp.p", numbers), HasSubstr("there is no key or node"));
  EXPECT_THAT(searched("graph.body.drop.q", numbers), HasSubstr("search.graph.body.drop.q: "));
  EXPECT_THAT(searched("graph.body.drop.p", R"({"float": [0, 2]})"), HasSubstr("2 cannot be: "));
  EXPECT_THAT(searched("optimizer.lr", R"({"float": [0, 1], "scale": "log"})"),
              HasSubstr("search.optimizer.lr: a log"));
  EXPECT_THAT(searched("optimizer.lr", R"({"float": [1, 1]})"),
              HasSubstr("search.optimizer.lr: the range from 1 to 1"));
  EXPECT_THAT(why([](Json& run) {
                run["search"] = Json::parse(R"({"optimizer": {"categorical": [{"name": "sgd", "lr": 0.1}, "adam"]},
                    "optimizer.lr": {"float": [0.1, 0.2]}})");
              }),
              HasSubstr("search.optimizer.lr: it is a part of optimizer, which is searched, too"));
  EXPECT_THAT(why([](Json& run) {
                run["optimizer"] = {{"name", "sgd"}, {"lr", 0.1}};
                run["search"] = Json::parse(R"({"optimizer.name": {"categorical": ["sgd", "adam"]},
                    "optimizer.momentum": {"float": [0.5, 0.9]}})");
              }),
              HasSubstr(R"("optimizer.name":"adam")"));
  EXPECT_THAT(why([](Json& run) {
                run["optimizer"] = {{"name", "sgd"}, {"lr", 0.1}};
                run["search"] = Json::parse(R"({"optimizer.name": {"categorical": ["sgd", "adam"]},
                    "optimizer.momentum": {"conditional": {"float": [0.5, 0.9]},
                                           "when": {"optimizer.name": ["sgd", "adam"]}}})");
              }),
              HasSubstr("search.optimizer.momentum: 0.5 cannot be: optimizer: unknown key"));
  EXPECT_THAT(searched("phases", R"({"categorical": [1, 2]})"), HasSubstr("this cannot be searched"));
  EXPECT_THAT(searched("seed", R"({"int": [0, 9]})"), HasSubstr("each member has one of its own"));
  EXPECT_THAT(searched("graph.strategy.generations", R"({"int": [1, 9]})"), HasSubstr("this cannot be searched"));
  EXPECT_THAT(searched("graph", R"({"categorical": [{"nodes": []}, {}]})"),
              HasSubstr("this cannot be searched, since graph.strategy is a part of it"));
  EXPECT_THAT(searched("graph.body.strategy", R"({"categorical": [{"type": "Local"}, {"type": "Federated"}]})"),
              HasSubstr("search.graph.body.strategy: this cannot be searched: it changes the strategy of a subgraph"));
  EXPECT_THAT(why([](Json& run) {
                run["search"] = Json::parse(R"({"graph.body.drop.p": {"float": [0, 0.5]},
                    "graph.nodes[1].nodes[2].p": {"float": [0, 0.5]}})");
              }),
              HasSubstr("search.graph.body.drop.p: it is another name for graph.nodes[1].nodes[2].p"));
  EXPECT_THAT(searched("data.split.validation", numbers), HasSubstr("members are compared by the same rows"));
  EXPECT_THAT(searched("train.epochs", R"({"int": [1, 9]})"), HasSubstr("this cannot be searched"));
  EXPECT_THAT(why([](Json& run) { run.erase("search"); }), HasSubstr("there is nothing to search"));
  EXPECT_THAT(why([](Json& run) { run["data"].erase("split"); }), HasSubstr("rows for validation"));
  EXPECT_THAT(why([](Json& run) { run["train"]["epochs"] = 3; }), HasSubstr("as long as the strategy has generations"));
  EXPECT_THAT(why([](Json& run) {
                run["graph"]["strategy"] = {{"type", "Local"}};
              }),
              HasSubstr("search: Local searches nothing; PopulationBased does"));
}

// --- phases ---

Json phased_run(const std::filesystem::path& output) {
  Json run = small_run(output);
  run["train"] = Json::object();
  run["data"]["drop_last"] = true;
  run["phases"] = Json::parse(R"([{"steps": 5, "set": {"optimizer.lr": 0.1}},
      {"epochs": 1, "set": {"data.batch_size": 7, "graph.body.drop.p": 0.4}},
      {"steps": 4, "new_optimizer": true, "set": {"optimizer": {"name": "adam", "lr": 0.01}}},
      {"steps": 3, "seed": 9, "set": {"optimizer.momentum": null}}])");
  return run;
}

TEST(PhasedTrain, GoesThroughItsPhases) {
  const ScratchFolder scratch;
  const Trained trained = train_small(read_small(phased_run(scratch / "run")));
  const auto steps = trained.told->of<event::StepEnded>();
  ASSERT_EQ(steps.size(), 5U + 9 + 4 + 3);
  EXPECT_EQ(steps[4].lr, 0.1);
  EXPECT_EQ(steps[5].lr, 0.05);
  EXPECT_EQ(steps[4].rows, 10);
  EXPECT_EQ(steps[5].rows, 7);
  EXPECT_EQ(steps[14].lr, 0.01);
  EXPECT_EQ(steps[18].lr, 0.05);
}

// Whatever sizes the batches of a phase have.
TEST(PhasedTrain, IsEvaluatedAtTheEndsOfEpochsAndPhases) {
  const ScratchFolder scratch;
  const auto evaluated = [&](const char* name, const char* phases) {
    Json run = small_run(scratch / name);
    run["train"] = Json::object();
    run["data"]["rows"] = 60;
    run["phases"] = Json::parse(phases);
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (const auto& its : train_small(read_small(run)).told->of<event::EvaluationEnded>())
      all.emplace_back(its.step, its.epoch);
    return all;
  };
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  // 60 rows: six batches of ten in an epoch, or two of thirty, or twelve of five.
  EXPECT_EQ(evaluated("larger", R"([{"epochs": 2}, {"epochs": 3, "set": {"data.batch_size": 30}}])"),
            (Pairs{{6, 1}, {12, 2}, {14, 3}, {16, 4}, {18, 5}}));
  EXPECT_EQ(evaluated("smaller", R"([{"epochs": 1}, {"epochs": 2, "set": {"data.batch_size": 5}}])"),
            (Pairs{{6, 1}, {18, 2}, {30, 3}}));
  EXPECT_EQ(evaluated("steps", R"([{"steps": 4}, {"steps": 10}])"), (Pairs{{4, 1}, {6, 1}, {12, 2}, {14, 3}}));
  EXPECT_EQ(evaluated("ends", R"([{"epochs": 2, "evaluate": "end"}, {"epochs": 2}])"),
            (Pairs{{12, 2}, {18, 3}, {24, 4}}));
}

TEST(PhasedTrain, EndsWithTheSameBitsWhereverItIsInterrupted) {
  const ScratchFolder scratch;
  const Trained once = train_small(read_small(phased_run(scratch / "once")));
  for (const int step : {1, 4, 5, 6, 13, 14, 15, 18, 20}) {
    const Json run = phased_run(scratch / std::to_string(step));
    (void)train_small(read_small(run), {.interrupt_at = step});
    const Trained resumed = train_small(read_small(run), {.resume = true});
    EXPECT_TRUE(arrays_in(resumed.result.last_checkpoint) == arrays_in(once.result.last_checkpoint)) << step;
  }
}

TEST(PhasedTrain, IsTheSameOnSeveralProcesses) {
  const ScratchFolder scratch;
  std::vector<ParameterSet> learnt;
  for (const int processes : {1, 2}) {
    Json run = phased_run(scratch / std::to_string(processes));
    run["graph"]["strategy"] = data_parallel(2, {{"logical_shards", 4}});
    run["phases"][1]["set"].erase("data.batch_size");
    learnt.push_back(weights_in(train_small(read_small(run), {.processes = processes}).result.last_checkpoint));
  }
  EXPECT_TRUE(learnt[0] == learnt[1]);
}

TEST(PhasedTrain, OnePhaseIsTheRunItself) {
  const ScratchFolder scratch;
  Json plain = small_run(scratch / "plain");
  plain["data"]["drop_last"] = true;
  plain["schedule"] = "cosine";
  Json phased = plain;
  phased["output"] = (scratch / "phased").string();
  phased["train"] = Json::object();
  phased["phases"] = Json::parse(R"([{"steps": 9}, {"steps": 5}])");
  EXPECT_TRUE(weights_in(train_small(read_small(plain)).result.last_checkpoint) ==
              weights_in(train_small(read_small(phased)).result.last_checkpoint));
}

TEST(PhasedTrain, RefusesByName) {
  const ScratchFolder scratch;
  const auto why = [&](const char* phases) {
    Json run = phased_run(scratch / "run");
    run["phases"] = Json::parse(phases);
    return usage_error([&] { (void)read_small(run); });
  };
  EXPECT_THAT(why("[]"), HasSubstr("phases: expected at least one phase"));
  EXPECT_THAT(why("[{}]"), HasSubstr("phases[0]: expected epochs or steps"));
  EXPECT_THAT(why(R"([{"steps": 1, "epochs": 1}])"), HasSubstr("expected one of the two"));
  EXPECT_THAT(why(R"([{"steps": 1}, {"steps": 1, "set": {"optimizer.lrr": 1}}])"), HasSubstr("lrr"));
  EXPECT_THAT(why(R"([{"steps": 1}, {"steps": 1, "set": {"graph.hidden.units": 3}}])"),
              HasSubstr("phases[1]: it changes the shape of weights"));
  EXPECT_THAT(why(R"([{"steps": 1, "set": {"graph.body.norm.op": "layer_norm"}}])"),
              HasSubstr("phases[0]: it changes the shape of weights"));
  EXPECT_THAT(why(R"([{"steps": 1, "set": {"graph.body.strategy": {"type": "Local"}}}])"),
              HasSubstr("phases[0]: it changes the strategy of a subgraph"));
  for (const char* path : {"data.source", "data.rows", "seed", "graph", "graph.strategy", "train.deadline", "output"}) {
    const std::string phases = R"([{"steps": 1, "set": {")" + std::string(path) + R"(": 3}}])";
    EXPECT_THAT(why(phases.c_str()), HasSubstr("a phase cannot set this: it belongs to the run as a whole")) << path;
  }
  EXPECT_THAT(why(R"([{"steps": 1, "sets": {}}])"), HasSubstr("phases[0]: unknown key \"sets\""));
  Json alone = phased_run(scratch / "run");
  alone["data"]["drop_last"] = false;
  alone["phases"][1]["set"]["data.batch_size"] = 67;  // of 68 rows
  EXPECT_THAT(usage_error([&] { (void)train_small(read_small(alone)); }),
              HasSubstr("phases[1]: the last batch of an epoch has 1 row"));
  Json run = phased_run(scratch / "run");
  run["train"]["steps"] = 3;
  EXPECT_THAT(usage_error([&] { (void)read_small(run); }), HasSubstr("the run is as long as its phases"));
}

}  // namespace
}  // namespace tutti::population_train_test
