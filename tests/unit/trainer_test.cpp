// Whole runs: what they tell and write, that they go on where they ended, and that their bits do not depend on who
// computes what.
#include <tutti/train/trainer.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::trainer_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Reason = event::RunEnded::Reason;

// --- what a run tells and leaves behind ---

TEST(Trainer, TellsTheStartEveryStepEvaluationsCheckpointsAndTheEnd) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["train"] = {{"epochs", 2}};
  const Trained trained = train_small(read_small(document));
  const auto started = trained.told->of<event::RunStarted>();
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].steps, 14);
  EXPECT_EQ(started[0].steps_per_epoch, 7);
  const auto steps = trained.told->of<event::StepEnded>();
  ASSERT_EQ(steps.size(), 14u);
  EXPECT_EQ(steps[6].epoch, 1);
  EXPECT_EQ(steps[7].epoch, 2);
  EXPECT_EQ(steps[6].rows, 8);  // 68 rows in batches of 10
  EXPECT_EQ(steps[0].metrics.size(), 2u);
  const auto evaluations = trained.told->of<event::EvaluationEnded>();
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[0].step, 7);
  EXPECT_EQ(evaluations[1].split, "test");
  EXPECT_EQ(evaluations[1].rows, 30);
  EXPECT_TRUE(evaluations[0].is_best);
  EXPECT_EQ(trained.told->of<event::CheckpointWritten>().size(), 2u);
  EXPECT_TRUE(std::holds_alternative<event::RunEnded>(trained.told->events.back()));
  EXPECT_EQ(trained.result.reason, Reason::finished);
  EXPECT_EQ(trained.result.best.of, "test accuracy");
}

TEST(Trainer, WritesTheResolvedRunWhichIsTheSameRun) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  (void)train_small(read_small(document));
  Json resolved = Json::parse(content_of(scratch / "run" / "run.json"));
  EXPECT_EQ(resolved["train"]["accumulate"], 1);
  EXPECT_EQ(resolved["optimizer"]["dampening"], 0);
  resolved["output"] = (scratch / "again").string();
  const Trained again = train_small(read_small(resolved));
  EXPECT_EQ(*read_small(resolved).resolved, resolved);
  EXPECT_EQ(arrays_in(again.result.last_checkpoint), arrays_in(scratch / "run/checkpoints/last.safetensors"));
}

TEST(Trainer, EvaluatesAndWritesCheckpointsAsOftenAsItIsTold) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["train"] = {{"steps", 14}, {"evaluate_every", 4}};
  document["checkpoints"] = {{"every", 3}, {"keep_last", 2}, {"keep_best", false}};
  const Trained trained = train_small(read_small(document));
  std::vector<std::int64_t> evaluated;
  for (const auto& one : trained.told->of<event::EvaluationEnded>()) evaluated.push_back(one.step);
  EXPECT_THAT(evaluated, ElementsAre(4, 8, 12, 14));
  std::vector<std::int64_t> written;
  for (const auto& one : trained.told->of<event::CheckpointWritten>()) written.push_back(one.step);
  EXPECT_THAT(written, ElementsAre(3, 6, 9, 12, 14));
  std::vector<std::int64_t> kept;
  for (const CheckpointFile& file : CheckpointFolder(scratch / "run/checkpoints", {}).files())
    kept.push_back(file.step);
  EXPECT_THAT(kept, ElementsAre(12, 14));
}

TEST(Trainer, KeepsTheBestCheckpoint) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  // The rate is so high that the first evaluations are the best ones.
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0.05}};
  document["schedule"] = {{"name", "step"}, {"every", 1}, {"factor", 10}};
  document["train"] = {{"steps", 21}, {"evaluate_every", 3}, {"best_by", "loss"}};
  document["checkpoints"] = {{"keep_last", 1}};
  const Trained trained = train_small(read_small(document));
  ASSERT_LT(trained.result.best.step, 21);
  std::vector<std::int64_t> kept;
  for (const CheckpointFile& file : CheckpointFolder(scratch / "run/checkpoints", {}).files())
    kept.push_back(file.step);
  EXPECT_THAT(kept, ElementsAre(trained.result.best.step, 21));
  EXPECT_EQ(read_checkpoint(scratch / "run/checkpoints/best.safetensors").state.step, trained.result.best.step);
}

TEST(Trainer, StopsEarlyWhereItGetsNoBetter) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
  document["train"] = {{"steps", 100}, {"evaluate_every", 2}, {"early_stopping", {{"patience", 3}}}};
  // Without a private past of batch norm nothing would change at all.
  const Trained trained = train_small(read_small(document));
  EXPECT_EQ(trained.result.reason, Reason::stopped_early);
  EXPECT_LT(trained.result.step, 100);
  EXPECT_EQ(trained.told->of<event::RunEnded>().front().reason, Reason::stopped_early);
}

TEST(Trainer, RefusesToStopEarlyWhereNothingIsEvaluated) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["data"]["test_rows"] = 0;
  EXPECT_EQ(train_small(read_small(document)).result.reason, Reason::finished);
  document["train"]["early_stopping"] = {{"patience", 3}};
  EXPECT_EQ(
      usage_error([&] { (void)train_small(read_small(document)); }),
      "train.early_stopping: nothing is ever evaluated, because the data has no rows to validate or to test with");
}

TEST(Trainer, TakesNoStepMoreWhereItIsAskedToEnd) {
  // While a step is taken, or what comes of it is done.
  struct Asking final : Observer {
    explicit Asking(std::int64_t its, bool meanwhile) : step(its), is_later(meanwhile) {}
    void on(const Event& event) override {
      const auto* ended = std::get_if<event::StepEnded>(&event);
      const auto* written = std::get_if<event::CheckpointWritten>(&event);
      if (written != nullptr) ++checkpoints;
      wants |= is_later ? written != nullptr && written->step == step : ended != nullptr && ended->step == step;
    }
    std::int64_t step;
    bool is_later;
    bool wants = false;
    int checkpoints = 0;
  };
  for (const auto& [step, is_later] : {std::pair(3, false), std::pair(5, false), std::pair(5, true)}) {
    const ScratchFolder scratch;
    Json document = small_run(scratch / "run");
    document["train"]["evaluate_every"] = 5;
    const auto asking = std::make_shared<Asking>(step, is_later);
    Events events;
    events.add(asking);
    const TrainResult result =
        train(read_small(document), events, {.is_interrupted = [asking] { return asking->wants; }});
    EXPECT_EQ(result.reason, Reason::interrupted);
    EXPECT_EQ(result.step, step);
    EXPECT_EQ(read_checkpoint(result.last_checkpoint).state.step, step);
    EXPECT_EQ(asking->checkpoints, 1);
  }
}

TEST(Trainer, PutsAnEarlierRunAside) {
  const ScratchFolder scratch;
  const tutti::Run run = read_small(small_run(scratch / "run"));
  const Trained first = train_small(run);
  const ParameterSet arrays = arrays_in(first.result.last_checkpoint);
  const Trained second = train_small(run);
  EXPECT_EQ(arrays_in(scratch / "run.1/checkpoints/last.safetensors"), arrays);
  EXPECT_EQ(arrays_in(second.result.last_checkpoint), arrays);
  ASSERT_EQ(second.told->of<event::Warned>().size(), 1u);
  EXPECT_THAT(second.told->of<event::Warned>()[0].sentence, HasSubstr("had an earlier run in it, which is now"));
}

TEST(Trainer, BeginsWithTheWeightsOfAFile) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "first");
  const Trained first = train_small(read_small(document));
  document["output"] = (scratch / "second").string();
  document["optimizer"]["lr"] = 0;
  const Trained second = train_small(read_small(document), {.from = first.result.last_checkpoint});
  EXPECT_EQ(arrays_in(second.result.last_checkpoint).at("logits.weight").bytes().size(),
            arrays_in(first.result.last_checkpoint).at("logits.weight").bytes().size());
  EXPECT_TRUE(std::ranges::equal(arrays_in(second.result.last_checkpoint).at("logits.weight").bytes(),
                                 arrays_in(first.result.last_checkpoint).at("logits.weight").bytes()));
  document["graph"]["nodes"][0]["units"] = 7;
  document["output"] = (scratch / "third").string();
  EXPECT_EQ(usage_error([&] { (void)train_small(read_small(document), {.from = first.result.last_checkpoint}); }),
            first.result.last_checkpoint.string() +
                " has not the weights of this graph: 'hidden.weight' is [6, 4] there, expected [7, 4]");
  EXPECT_FALSE(std::filesystem::exists(scratch / "third"));
}

TEST(Trainer, SaysAtWhichStepItFailed) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["optimizer"] = {{"name", "sgd"}, {"lr", 1e30}};
  try {
    (void)train_small(read_small(document));
    FAIL() << "it should not be finite";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), StartsWith("step 2: the gradient of '"));
    EXPECT_THAT(error.what(), HasSubstr("is not finite"));
  }
}

TEST(Trainer, SaysBeforeTheFirstStepWhereBatchNormWillHaveOneRow) {
  const ScratchFolder scratch;
  const auto refused = [&](std::int64_t rows, const Json& strategy, bool drop_last = false) -> std::string {
    Json document = small_run(scratch / "run");
    document["data"]["rows"] = rows;
    document["data"]["drop_last"] = drop_last;
    document["graph"]["strategy"] = strategy;
    try {
      (void)train_small(read_small(document));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(21, {{"type", "Local"}}),
            "the last batch of an epoch has 1 row, and 'body.norm' (batch_norm) needs at least 2 in one place; "
            "\"drop_last\": true leaves it out");
  EXPECT_EQ(refused(23, data_parallel(2)),
            "the last batch of an epoch has 3 rows, dealt out to 2 replicas, and 'body.norm' (batch_norm) needs at "
            "least 2 in one place; \"drop_last\": true leaves it out");
  EXPECT_EQ(refused(20, data_parallel(2, {{"logical_shards", 6}})),
            "a batch has 10 rows, dealt out to 6 shards, and 'body.norm' (batch_norm) needs at least 2 in one place; "
            "take a larger batch_size");
  EXPECT_EQ(refused(23, data_parallel(2), true), "");
  EXPECT_EQ(refused(24, data_parallel(2)), "");
}

TEST(Trainer, RefusesMoreProcessesThanAStrategyIsFor) {
  const ScratchFolder scratch;
  const auto refused = [&](const Json& strategy, int processes = 1) {
    Json document = small_run(scratch / "run");
    document["graph"]["strategy"] = strategy;
    return why_not_trainable(read_small(document), processes).value_or("");
  };
  EXPECT_EQ(refused({{"type", "Local"}}, 2),
            "the strategy Local is for one process, and there are 2; DataParallel spreads replicas over processes");
  EXPECT_EQ(refused(data_parallel(2), 3), "num_replicas: expected at least one for each of 3 processes, found 2");
  EXPECT_EQ(refused(data_parallel(3), 2), "");
}

TEST(Trainer, TellsWhatEachReplicaDidWhen) {
  const ScratchFolder scratch;
  for (const int processes : {1, 2}) {
    Json document = small_run(scratch / std::to_string(processes));
    document["graph"]["strategy"] = data_parallel(3);
    const Trained trained = train_small(read_small(document), {.processes = processes, .trace = true});
    std::map<int, std::map<event::SpanEnded::Kind, int>> seen;
    for (const auto& span : trained.told->of<event::SpanEnded>()) {
      EXPECT_LE(span.begin, span.end);
      EXPECT_GE(span.begin, 0);
      ++seen[span.rank][span.kind];
    }
    ASSERT_EQ(seen.size(), 3u) << processes;
    for (const auto& [rank, kinds] : seen) {
      EXPECT_TRUE(kinds.contains(event::SpanEnded::Kind::compute)) << rank;
      EXPECT_TRUE(kinds.contains(event::SpanEnded::Kind::communication)) << rank;
    }
    EXPECT_TRUE(seen[0].contains(event::SpanEnded::Kind::data));
  }
}

// --- rows ---

// Every row of an epoch is computed once, whoever computes it.
TEST(Trainer, LosesNoRowAndSeesNoneTwice) {
  struct Seen {
    std::mutex mutex;
    std::map<std::uint64_t, std::vector<double>> by_step;
  };
  for (const auto& [replicas, processes] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {5, 1}, {2, 2}, {5, 3}}) {
    const ScratchFolder scratch;
    const auto seen = std::make_shared<Seen>();
    Registry registry;
    registry.data_sources.add(
        {.name = "numbers", .resolve = [](const Options&) {
           return DataSource{.description = {.inputs = {{"x", {.shape = {4}}}}, .target = {.shape = {1}}}, .open = [] {
                               return DataSplits{.train = std::make_shared<TensorDataset>(
                                                     std::vector{torch::ones({37, 4})},
                                                     torch::arange(37, torch::kFloat32).unsqueeze(1))};
                             }};
         }});
    registry.losses.add(
        {.name = "recorder", .resolve = [seen](const Options&, const ValueSpec&, const DataDescription&) {
           return Loss{[seen](const torch::Tensor& output, const torch::Tensor& target) {
             const std::lock_guard lock(seen->mutex);
             std::vector<double>& its = seen->by_step[RandomDraws::current()->key().step];
             for (std::int64_t i = 0; i < target.size(0); ++i) its.push_back(target[i].item<double>());
             return WeightedLoss(torch::mse_loss(output, target));
           }};
         }});
    Json document = small_run(scratch / "run");
    document["data"] = {{"source", "numbers"}, {"batch_size", 8}};
    document["graph"] = Json::parse(R"({"inputs": {"x": [4]}, "nodes": [
        {"id": "value", "op": "linear", "inputs": ["x"], "units": 1}], "outputs": ["value"]})");
    document["graph"]["strategy"] = data_parallel(replicas);
    document["loss"] = "recorder";
    document.erase("metrics");
    document["optimizer"] = {{"name", "sgd"}, {"lr", 1e-6}};
    document["train"] = {{"epochs", 3}};
    (void)train_small(read_small(document, registry), {.processes = processes});
    std::vector<double> expected(37);
    std::iota(expected.begin(), expected.end(), 0);
    for (const std::uint64_t epoch : {1, 2}) {  // before the first step, replicas are compared on rows of it
      std::vector<double> rows;
      for (std::uint64_t step = 5 * epoch; step < 5 * (epoch + 1); ++step)
        rows.insert(rows.end(), seen->by_step[step].begin(), seen->by_step[step].end());
      std::ranges::sort(rows);
      EXPECT_EQ(rows, expected) << replicas << " replicas on " << processes;
    }
  }
}

// --- the same bits ---

TEST(Trainer, GivesTheSameBitsOnAnyNumberOfReplicasAndProcessesWithLogicalShards) {
  const ScratchFolder scratch;
  std::optional<ParameterSet> expected;
  std::vector<double> losses;
  for (const auto& [replicas, processes] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 2}, {4, 2}, {4, 3}}) {
    Json document = small_run(scratch / fmt::format("{}-{}", replicas, processes));
    document["graph"]["strategy"] = data_parallel(replicas, {{"logical_shards", 4}});
    document["train"]["clip_norm"] = 0.5;
    const Trained trained = train_small(read_small(document), {.processes = processes});
    const ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
    std::vector<double> told;
    for (const auto& step : trained.told->of<event::StepEnded>()) {
      told.push_back(step.loss);
      for (const NamedNumber& metric : step.metrics) told.push_back(metric.value);
    }
    for (const auto& one : trained.told->of<event::EvaluationEnded>()) told.push_back(one.loss);
    if (!expected) {
      expected = arrays;
      losses = told;
    }
    EXPECT_EQ(arrays, *expected) << replicas << " replicas on " << processes << " processes";
    EXPECT_EQ(told, losses) << replicas << " replicas on " << processes << " processes";
  }
}

struct Variant {
  std::string name;
  std::function<void(Json&)> change;
  bool has_shards = false;  // may go on with another number of replicas
};

std::vector<Variant> variants() {
  const auto strategy = [](int replicas, const Json& options) {
    return [=](Json& run) { run["graph"]["strategy"] = data_parallel(replicas, options); };
  };
  return {
      {"Local", [](Json&) {}},
      {"plain", strategy(2, Json::object())},
      {"Ring", strategy(3, {{"algorithm", "Ring"}})},
      {"TopK", strategy(2, {{"compression", {{"TopK", 0.2}}}})},
      {"PowerSgd", strategy(3, {{"compression", {{"PowerSgd", 1}}}})},
      {"shards", strategy(2, {{"logical_shards", 4}}), true},
      {"accumulate",
       [](Json& run) {
         run["graph"]["strategy"] = data_parallel(2);
         run["train"]["accumulate"] = 3;
         run["train"]["clip_norm"] = 0.3;
       }},
      {"accumulate with shards",
       [](Json& run) {
         run["graph"]["strategy"] = data_parallel(2, {{"logical_shards", 4}});
         run["train"]["accumulate"] = 4;
       },
       true},
      {"private",
       [](Json& run) {
         run["graph"]["strategy"] = data_parallel(3);
         run["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
       }},
      {"private with a frozen one, accumulated",
       [](Json& run) {
         run["graph"]["strategy"] = data_parallel(2);
         run["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
         run["graph"]["nodes"][1]["nodes"][3]["frozen"] = true;
         run["train"]["accumulate"] = 3;
       }},
      {"private, accumulated, Ring",
       [](Json& run) {
         run["graph"]["strategy"] = data_parallel(2, {{"algorithm", "Ring"}});
         run["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
         run["train"]["accumulate"] = 3;
       }},
  };
}

const std::vector<Json> kOptimizers{{{"name", "sgd"}, {"lr", 0.05}},
                                    {{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}, {"nesterov", true}},
                                    {{"name", "adam"}, {"lr", 0.01}, {"amsgrad", true}},
                                    {{"name", "adamw"}, {"lr", 0.01}},
                                    {{"name", "rmsprop"}, {"lr", 0.01}, {"momentum", 0.5}, {"centered", true}},
                                    {{"name", "adagrad"}, {"lr", 0.05}, {"initial_accumulator_value", 0.1}}};

// Interrupted after any step and resumed, a run ends as if nothing had been.
TEST(Trainer, EndsWithTheSameBitsHoweverOftenItIsInterrupted) {
  const ScratchFolder scratch;
  int number = 0;
  for (const Variant& variant : variants()) {
    for (const int processes : {1, 2}) {
      if (processes > 1 && variant.name == "Local") continue;
      const std::size_t place = static_cast<std::size_t>(number);
      Json document = small_run(scratch / fmt::format("{}-whole", ++number));
      document["optimizer"] = kOptimizers[place % kOptimizers.size()];
      document["schedule"] = place % 2 == 0 ? Json("one_cycle") : Json{{"name", "cosine"}, {"warmup", 3}};
      document["train"]["early_stopping"] = {{"patience", 100}};
      document["train"]["evaluate_every"] = 5;
      variant.change(document);
      const std::string told = fmt::format("{} on {}, {}", variant.name, processes, document["optimizer"].dump());
      const Trained whole = train_small(read_small(document), {.processes = processes});
      document["output"] = (scratch / fmt::format("{}-parts", number)).string();
      const tutti::Run run = read_small(document);
      std::vector<double> losses;
      Trained part;
      for (bool is_resumed = false;; is_resumed = true) {
        part = train_small(run, {.processes = processes, .resume = is_resumed, .interrupt_at = 2 + number % 4});
        for (const auto& step : part.told->of<event::StepEnded>()) losses.push_back(step.loss);
        if (part.result.reason == Reason::finished) break;
        ASSERT_EQ(part.result.reason, Reason::interrupted) << told;
      }
      std::vector<double> expected;
      for (const auto& step : whole.told->of<event::StepEnded>()) expected.push_back(step.loss);
      EXPECT_EQ(losses, expected) << told;
      EXPECT_EQ(arrays_in(part.result.last_checkpoint), arrays_in(whole.result.last_checkpoint)) << told;
      EXPECT_EQ(part.result.best, whole.result.best) << told;
    }
  }
}

TEST(Trainer, GoesOnWithAnotherNumberOfReplicasAndProcesses) {
  const ScratchFolder scratch;
  for (const Variant& variant : variants()) {
    if (!variant.has_shards) continue;
    Json document = small_run(scratch / (variant.name + " whole"));
    variant.change(document);
    const Trained whole = train_small(read_small(document));
    document["output"] = (scratch / (variant.name + " parts")).string();
    Trained part;
    int number = 0;
    do {
      const auto [replicas, processes] = std::vector<std::pair<int, int>>{{2, 1}, {4, 2}, {1, 1}, {3, 3}}[number % 4];
      document["graph"]["strategy"]["num_replicas"] = replicas;
      part = train_small(read_small(document), {.processes = processes, .resume = number > 0, .interrupt_at = 3});
      ++number;
    } while (part.result.reason == Reason::interrupted);
    EXPECT_GT(number, 3);
    EXPECT_EQ(arrays_in(part.result.last_checkpoint), arrays_in(whole.result.last_checkpoint)) << variant.name;
  }
}

// What only some replicas have, or had, is shared out; the run goes on.
TEST(Trainer, GoesOnWithAnotherNumberOfReplicasWhereTheBitsDependOnThem) {
  const ScratchFolder scratch;
  for (const Variant& variant : variants()) {
    if (variant.name == "Local") continue;
    Json document = small_run(scratch / variant.name);
    variant.change(document);
    (void)train_small(read_small(document), {.interrupt_at = 5});
    document["graph"]["strategy"]["num_replicas"] = 4;
    const Trained rest = train_small(read_small(document), {.processes = 2, .resume = true});
    EXPECT_EQ(rest.result.reason, Reason::finished) << variant.name;
    EXPECT_EQ(rest.told->of<event::StepEnded>().size(), 9u) << variant.name;
  }
}

TEST(Trainer, UsesTheCheckpointBeforeADamagedOne) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["checkpoints"] = {{"every", 4}, {"keep_last", 3}, {"keep_best", false}};
  const Trained whole = train_small(read_small(document));
  const ParameterSet expected = arrays_in(whole.result.last_checkpoint);
  const std::string damaged = content_of(whole.result.last_checkpoint);
  overwrite(whole.result.last_checkpoint, damaged.substr(0, damaged.size() / 2));
  const Trained rest = train_small(read_small(document), {.resume = true});
  EXPECT_EQ(rest.told->of<event::RunStarted>()[0].first_step, 12);
  ASSERT_EQ(rest.told->of<event::Warned>().size(), 1u);
  EXPECT_THAT(rest.told->of<event::Warned>()[0].sentence, HasSubstr("the file is cut short"));
  EXPECT_EQ(arrays_in(rest.result.last_checkpoint), expected);
}

TEST(Trainer, WarnsWhereTheRunIsAnotherThanTheCheckpoints) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  (void)train_small(read_small(document), {.interrupt_at = 3});
  document["optimizer"]["lr"] = 0.01;
  document["train"]["steps"] = 9;
  const Trained rest = train_small(read_small(document), {.resume = true});
  ASSERT_EQ(rest.told->of<event::Warned>().size(), 1u);
  EXPECT_EQ(rest.told->of<event::Warned>()[0].sentence,
            "the run file has changed since the checkpoint was written: optimizer.lr");
  EXPECT_EQ(rest.result.step, 9);
}

TEST(Trainer, RefusesACheckpointOfAnotherGraph) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  (void)train_small(read_small(document), {.interrupt_at = 3});
  document["graph"]["nodes"][0]["units"] = 9;
  EXPECT_EQ(usage_error([&] { (void)train_small(read_small(document), {.resume = true}); }),
            "the checkpoint is not of this run: 'body.norm.running_mean' is [6] there, expected [9]");
  EXPECT_TRUE(std::filesystem::exists(scratch / "run/checkpoints/step-000000003.safetensors"));
}

TEST(Trainer, EndsOnAllProcessesWhereOneFails) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["graph"]["strategy"] = data_parallel(2);
  document["optimizer"] = {{"name", "sgd"}, {"lr", 1e30}};
  EXPECT_THROW((void)train_small(read_small(document), {.processes = 2}), Error);
}

// What each of two processes says in the end, of runs that fail.
std::vector<std::string> said_by_two(const std::vector<tutti::Run>& runs) {
  std::vector<std::string> said(2);
  EXPECT_ANY_THROW(run_ranks(2, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank().value);
    try {
      (void)train(runs[rank], {}, {.world = &world});
    } catch (const ToldElsewhere&) {
      said[rank] = "told elsewhere";
      throw;
    } catch (const std::exception& error) {
      said[rank] = error.what();
      throw;
    }
  }));
  return said;
}

TEST(Trainer, SaysOnTheOneThatFailedAloneWhyAndEndsTheOthers) {
  const ScratchFolder scratch;
  Registry registry;
  registry.losses.add({.name = "moody", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) {
                         return Loss{[](const torch::Tensor& output, const torch::Tensor& target) {
                           const RandomDraws* draws = RandomDraws::current();
                           if (draws != nullptr && draws->key().step == 3 && draws->key().shard == 1)
                             throw UsageError("row 7 is bad");
                           return WeightedLoss(torch::nn::functional::cross_entropy(output, target));
                         }};
                       }});
  Json document = small_run(scratch / "run");
  document["graph"]["strategy"] = data_parallel(2);
  document["loss"] = "moody";
  const tutti::Run run = read_small(document, registry);
  EXPECT_EQ(said_by_two({run, run}), (std::vector<std::string>{"told elsewhere", "step 4: row 7 is bad"}));
}

TEST(Trainer, RefusesProcessesThatHaveDifferentRunFiles) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "run");
  document["graph"]["strategy"] = data_parallel(2);
  Json other = document;
  other["optimizer"]["lr"] = 0.06;
  other["graph"]["nodes"][0]["units"] = 7;
  other["output"] = (scratch / "elsewhere").string();
  EXPECT_EQ(said_by_two({read_small(document), read_small(other)}),
            (std::vector<std::string>{"told elsewhere",
                                      "this process has another run file than rank 0: graph.nodes, optimizer.lr"}));
  EXPECT_FALSE(std::filesystem::exists(scratch / "run"));
}

// Replicas of their own, or more threads in one process than in another: all rows are evaluated once, by replica 0.
TEST(Trainer, EvaluatesAsTheCheckpointDoes) {
  for (const bool is_private : {false, true}) {
    const ScratchFolder scratch;
    Json document = small_run(scratch / "run");
    document["data"]["rows"] = 2000;
    document["data"]["split"] = {{"validation", 0.7}};
    document["data"]["batch_size"] = 60;
    document["graph"]["strategy"] = data_parallel(3);
    if (is_private) document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
    const auto run = std::make_shared<const tutti::Run>(read_small(document));
    const Trained trained = train_small(*run, {.processes = 2});
    const auto net = std::make_shared<GraphModule>(run->graph, run->seed);
    fill_module(weights_in(trained.result.last_checkpoint), *net);
    const Evaluation expected = Evaluator(run, {}).evaluate(net, open_data(*run).validation);
    const auto told = trained.told->of<event::EvaluationEnded>();
    ASSERT_EQ(told[told.size() - 2].split, "validation");
    EXPECT_EQ(told[told.size() - 2].loss, expected.loss) << is_private;
    EXPECT_EQ(told[told.size() - 2].metrics, expected.metrics) << is_private;
  }
}

// --- private parameters ---

TEST(Trainer, LeavesEachReplicaItsPrivateParameters) {
  for (const int processes : {1, 2}) {
    const ScratchFolder scratch;
    Json document = small_run(scratch / "run");
    document["graph"]["strategy"] = data_parallel(3);
    document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
    const Trained trained = train_small(read_small(document), {.processes = processes});
    const ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
    std::vector<ParameterSet> by_replica;
    for (const int replica : {0, 1, 2}) by_replica.push_back(weights_of_replica(arrays, replica));
    for (const NamedArray& array : by_replica[0]) {
      const bool is_private = array.name().starts_with("body.");
      if (array.name().ends_with("num_batches_tracked")) continue;
      for (const int replica : {1, 2}) {
        const bool is_same =
            std::ranges::equal(array.bytes(), by_replica[static_cast<std::size_t>(replica)].at(array.name()).bytes());
        EXPECT_EQ(is_same, !is_private) << array.name() << " of replica " << replica << " on " << processes;
      }
    }
    EXPECT_EQ(usage_error([&] { (void)weights_of_replica(arrays, 3); }),
              "there is no replica 3 with parameters of its own; take replica 0's");
  }
}

}  // namespace
}  // namespace tutti::trainer_test
