// Runs whose replicas do not wait for each other: what does not depend on who is faster.
#include <tutti/train/trainer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/chunk.hpp>
#include <tutti/coordinate/update_check.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/strategy/mixing.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/footprint.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::asynchronous_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Reason = event::RunEnded::Reason;

Json server(int replicas, const std::string& consistency, const Json& more = Json::object()) {
  Json aggregation{{"method", "ParameterServer"}, {"consistency", consistency}};
  aggregation.update(more);
  return {{"type", "DataParallel"}, {"num_replicas", replicas}, {"aggregation", aggregation}};
}

Json run_with(const std::filesystem::path& output, const Json& strategy) {
  Json run = small_run(output);
  run["graph"]["strategy"] = strategy;
  run["data"]["drop_last"] = true;  // two rows for batch norm in each place
  return run;
}

Json gossip(int replicas, const std::string& topology) {
  return {{"type", "DataParallel"},
          {"num_replicas", replicas},
          {"aggregation", {{"method", "Decentralized"}, {"topology", topology}, {"gossip", true}}}};
}

// With rows enough that what is learnt depends little on who is faster; of three kinds one in three would be told by
// chance.
Json calm_run(const std::filesystem::path& output, const Json& strategy) {
  Json run = run_with(output, strategy);
  run["data"]["rows"] = 480;
  run["data"]["batch_size"] = 48;
  run["optimizer"] = {{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.5}};
  run["train"] = {{"steps", 120}};
  return run;
}
constexpr double kLearnt = 0.6;

// Without what the optimizer keeps, whose names are others.
void expect_same_weights(const ParameterSet& one, const ParameterSet& other, double tolerance) {
  for (const char* name : {"hidden.weight", "hidden.bias", "body.norm.weight", "body.norm.running_mean",
                           "body.wide.weight", "logits.weight", "logits.bias"}) {
    const torch::Tensor a = tensor_of(one.at(name));
    const torch::Tensor b = tensor_of(other.at(name));
    EXPECT_LE((a - b).abs().max().item<double>(), tolerance) << name;
  }
}

// Nobody is there to be faster: what one replica learns is what Local learns, to the bit.
TEST(Asynchronous, OneReplicaLearnsWhatLocalDoes) {
  const ScratchFolder scratch;
  for (const Json& optimizer : {Json({{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}}), Json({{"name", "adam"}})}) {
    Json document = run_with(scratch / ("local" + optimizer["name"].get<std::string>()), {{"type", "Local"}});
    document["optimizer"] = optimizer;
    document["schedule"] = {{"name", "cosine"}};
    document["graph"]["nodes"][0]["lr_factor"] = 0.5;
    const ParameterSet local = arrays_in(train_small(read_small(document)).result.last_checkpoint);
    for (const char* consistency : {"asynchronous", "bounded_staleness", "lock_free"}) {
      SCOPED_TRACE(consistency);
      document["output"] = (scratch / (consistency + optimizer["name"].get<std::string>())).string();
      document["graph"]["strategy"] = server(1, consistency);
      const Trained trained = train_small(read_small(document));
      // Without locks a change is the difference of what was and what would be, rounded once more.
      const double tolerance = consistency == std::string("lock_free") ? 1e-5 : 0;
      expect_same_weights(arrays_in(trained.result.last_checkpoint), local, tolerance);
    }
  }
}

// Which rows a step has does depend on who is faster; that each comes up once in an epoch does not.
TEST(Asynchronous, TakesEveryRowOfAnEpochOnce) {
  const ScratchFolder scratch;
  int number = 0;
  for (const Json& strategy :
       {server(3, "asynchronous"), server(3, "bounded_staleness"), server(3, "lock_free"), gossip(3, "ring")}) {
    for (const int processes : {1, 2, 3}) {
      SCOPED_TRACE(strategy.dump() + " on " + std::to_string(processes));
      std::mutex mutex;
      std::vector<std::int64_t> taken;
      Registry registry;
      registry.data_sources.add(
          {.name = "numbered", .resolve = [&](const Options&) {
             struct Numbered final : Dataset {
               Numbered(std::mutex& its_mutex, std::vector<std::int64_t>& its_taken)
                   : mutex(its_mutex), taken(its_taken) {}
               std::int64_t size() const override { return 60; }
               DataRows rows(std::span<const std::int64_t> numbers) const override {
                 const std::lock_guard lock(mutex);
                 if (numbers.size() > 1)  // the first one is looked at by itself
                   taken.insert(taken.end(), numbers.begin(), numbers.end());
                 const auto count = static_cast<std::int64_t>(numbers.size());
                 return {.inputs = {torch::ones({count, 4})}, .target = torch::zeros({count}, torch::kInt64)};
               }
               std::mutex& mutex;
               std::vector<std::int64_t>& taken;
             };
             return DataSource{.description = {.inputs = {{"point", {.shape = {4}}}},
                                               .target = {.shape = {}, .type = ValueType::int64},
                                               .classes = 3},
                               .open = [&] { return DataSplits{.train = std::make_shared<Numbered>(mutex, taken)}; }};
           }});
      Json document = run_with(scratch / std::to_string(number++), strategy);
      document["data"] = {{"source", "numbered"}, {"batch_size", 12}};
      document["train"] = {{"epochs", 2}};
      const tutti::Run run = read_run(JsonDocument::parse(document.dump(), "run.json").root(), registry);
      taken.clear();
      const Trained trained = train_small(run, {.processes = processes});
      EXPECT_EQ(trained.result.step, 10);
      std::ranges::sort(taken);
      std::vector<std::int64_t> twice;
      for (std::int64_t i = 0; i < 60; ++i) twice.insert(twice.end(), {i, i});
      EXPECT_EQ(taken, twice);
      std::int64_t rows = 0;
      for (const event::StepEnded& step : trained.told->of<event::StepEnded>()) rows += step.rows;
      EXPECT_EQ(rows, 120);
    }
  }
}

TEST(Asynchronous, GoesOnWhereItEnded) {
  const ScratchFolder scratch;
  int number = 0;
  for (const char* consistency : {"asynchronous", "bounded_staleness", "lock_free"}) {
    SCOPED_TRACE(consistency);
    // With one replica to the bit.
    Json document = run_with(scratch / std::to_string(number++), server(1, consistency));
    const ParameterSet whole = arrays_in(train_small(read_small(document)).result.last_checkpoint);
    for (const std::int64_t at : {1, 9}) {
      document["output"] = (scratch / std::to_string(number++)).string();
      EXPECT_EQ(train_small(read_small(document), {.interrupt_at = at}).result.reason, Reason::interrupted);
      expect_same_weights(arrays_in(train_small(read_small(document), {.resume = true}).result.last_checkpoint), whole,
                          consistency == std::string("lock_free") ? 1e-5 : 0);
    }
    // With several, and then others.
    for (const int processes : {1, 2}) {
      document = run_with(scratch / std::to_string(number++), server(3, consistency));
      const Trained first = train_small(read_small(document), {.processes = processes, .interrupt_at = 5});
      EXPECT_EQ(first.result.step, 5);
      const Trained rest = train_small(read_small(document), {.processes = 3 - processes, .resume = true});
      EXPECT_EQ(rest.result.reason, Reason::finished);
      EXPECT_EQ(rest.result.step, 14);
      EXPECT_EQ(rest.told->of<event::RunStarted>()[0].first_step, 5);
      // With other replicas, too; no step is without rows, and an epoch has as many as ever.
      document["graph"]["strategy"]["num_replicas"] = 2;
      document["train"] = {{"steps", 20}};
      const Trained others = train_small(read_small(document), {.resume = true});
      EXPECT_EQ(others.result.step, 20);
      std::int64_t rows = 0;
      for (const Trained* part : {&first, &rest, &others}) {
        for (const event::StepEnded& step : part->told->of<event::StepEnded>()) {
          EXPECT_GT(step.rows, 0);
          rows += step.rows;
        }
      }
      EXPECT_EQ(rows, 20 * 10);
    }
  }
}

// What an optimizer remembered is nothing to another kind, and of a layer that was frozen there is nothing: that begins
// anew, and nothing else does, as where one learns alone.
TEST(Asynchronous, GoesOnWithAnotherOptimizerAndOtherParameters) {
  const ScratchFolder scratch;
  int number = 0;
  struct Run {
    std::int64_t batches;  // with the first optimizer
    ParameterSet arrays;
  };
  const auto trained_with = [&](const Json& strategy, const Json& optimizer, std::int64_t interrupt_at,
                                bool was_frozen) {
    Json document = run_with(scratch / std::to_string(number++), strategy);
    document["graph"]["nodes"][0]["frozen"] = was_frozen;
    const ParameterSet first =
        arrays_in(train_small(read_small(document), {.interrupt_at = interrupt_at}).result.last_checkpoint);
    const NamedArray* batches = first.find("asynchronous/batches");
    document["graph"]["nodes"][0]["frozen"] = !was_frozen;
    document["optimizer"] = optimizer;
    const Trained rest = train_small(read_small(document), {.resume = true});
    EXPECT_EQ(rest.result.step, 14);
    return Run{batches != nullptr ? batches->values<std::int64_t>()[0] : interrupt_at,
               arrays_in(rest.result.last_checkpoint)};
  };
  for (const Json& optimizer :
       {Json({{"name", "sgd"}, {"lr", 0.05}}), Json({{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}}),
        Json({{"name", "adam"}, {"lr", 0.01}}), Json({{"name", "rmsprop"}, {"lr", 0.01}}),
        Json({{"name", "adagrad"}, {"lr", 0.01}})}) {
    for (const Json& strategy : {server(1, "asynchronous"), server(1, "lock_free"), gossip(1, "ring")}) {
      SCOPED_TRACE(optimizer.dump() + strategy.dump());
      for (const bool was_frozen : {true, false}) {
        const Run one = trained_with(strategy, optimizer, 5, was_frozen);
        const Run local = trained_with({{"type", "Local"}}, optimizer, one.batches, was_frozen);
        expect_same_weights(one.arrays, local.arrays, strategy == server(1, "lock_free") ? 1e-4 : 0);
      }
    }
  }
  for (const Json& strategy : {server(2, "bounded_staleness"), server(2, "lock_free"), gossip(3, "ring")}) {
    for (const char* optimizer : {"sgd", "rmsprop"}) {
      const Run its = trained_with(strategy, {{"name", optimizer}, {"lr", 0.01}, {"momentum", 0.9}}, 5, true);
      for (const NamedArray& array : its.arrays) EXPECT_TRUE(has_finite_numbers(array)) << array.name();
    }
  }
}

// Parameters that are frozen travel with no task.
TEST(Asynchronous, GoesOnWithTheFrozenLayersThatItBeganWith) {
  const ScratchFolder scratch;
  Json before = small_run(scratch / "before");
  before["seed"] = 99;
  before["train"] = {{"steps", 40}};
  const std::filesystem::path from = train_small(read_small(before)).result.last_checkpoint;
  int number = 0;
  for (const Json& strategy :
       {server(2, "asynchronous"), server(2, "bounded_staleness"), server(2, "lock_free"), gossip(2, "ring")}) {
    for (const int processes : {1, 2}) {
      SCOPED_TRACE(strategy.dump() + " on " + std::to_string(processes));
      // Nothing moves, so that losses tell what they were computed with, whoever is faster.
      Json document = run_with(scratch / std::to_string(number++), strategy);
      document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
      document["data"]["shuffle"] = false;
      document["graph"]["nodes"][0]["frozen"] = true;
      document["graph"]["nodes"][1]["nodes"][2]["p"] = 0;
      document["train"] = {{"epochs", 2}};
      const auto losses = [](const Trained& trained, std::int64_t first, std::int64_t end) {
        double sum = 0;
        for (const event::StepEnded& step : trained.told->of<event::StepEnded>()) {
          if (step.step > first && step.step <= end) sum += step.loss;
        }
        return sum;
      };
      const Trained whole = train_small(read_small(document), {.processes = processes, .from = from});
      document["output"] = (scratch / std::to_string(number++)).string();
      const Trained first =
          train_small(read_small(document), {.processes = processes, .from = from, .interrupt_at = 6});
      const Trained rest = train_small(read_small(document), {.processes = processes, .resume = true});
      ASSERT_EQ(rest.result.step, 12);
      EXPECT_NEAR(losses(first, 0, 6) + losses(rest, 6, 12), losses(whole, 0, 12), 1e-4);
    }
  }
}

// Else an evaluation would be of what comes long after the step that it is told of.
TEST(Asynchronous, IsNeverFarAheadOfTheStepThatIsTold) {
  struct Counted final : Dataset {
    explicit Counted(std::atomic<std::int64_t>& its) : rows_taken(its) {}
    std::int64_t size() const override { return 60; }
    DataRows rows(std::span<const std::int64_t> numbers) const override {
      const auto count = static_cast<std::int64_t>(numbers.size());
      if (count > 1) rows_taken += count;  // the first one is looked at by itself
      return {.inputs = {torch::ones({count, 4})}, .target = torch::zeros({count}, torch::kInt64)};
    }
    std::atomic<std::int64_t>& rows_taken;
  };
  struct Slow final : Observer {
    Slow(std::atomic<std::int64_t>& its, std::int64_t its_steps) : rows_taken(its), steps(its_steps) {}
    void on(const Event& event) override {
      const auto* step = std::get_if<event::StepEnded>(&event);
      if (step == nullptr) return;
      const std::int64_t most = 12 * std::min(step->step + 2, steps);
      // As far as they come.
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (rows_taken < most && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      for (int i = 0; i < 200; ++i) std::this_thread::yield();
      ahead = std::max<std::int64_t>(ahead, rows_taken - most);
    }
    std::atomic<std::int64_t>& rows_taken;
    std::int64_t steps;
    std::int64_t ahead = -1;
  };
  const ScratchFolder scratch;
  for (const Json& strategy : {server(3, "asynchronous"), server(3, "lock_free"), gossip(3, "ring")}) {
    std::atomic<std::int64_t> rows_taken = 0;
    Registry registry;
    registry.data_sources.add(
        {.name = "counted", .resolve = [&](const Options&) {
           return DataSource{.description = {.inputs = {{"point", {.shape = {4}}}},
                                             .target = {.shape = {}, .type = ValueType::int64},
                                             .classes = 3},
                             .open = [&] { return DataSplits{.train = std::make_shared<Counted>(rows_taken)}; }};
         }});
    Json document = run_with(scratch / "run", strategy);
    document["data"] = {{"source", "counted"}, {"batch_size", 12}};
    document["train"] = {{"steps", 20}};
    const tutti::Run run = read_run(JsonDocument::parse(document.dump(), "run.json").root(), registry);
    rows_taken = 0;
    const auto slow = std::make_shared<Slow>(rows_taken, 20);
    Events events;
    events.add(slow);
    EXPECT_EQ(train(run, events).step, 20);
    EXPECT_EQ(slow->ahead, 0) << strategy;
  }
}

TEST(Asynchronous, LearnsOnThreadsAndOnProcesses) {
  const ScratchFolder scratch;
  int number = 0;
  for (const Json& strategy :
       {server(3, "asynchronous"), server(3, "bounded_staleness", {{"max_staleness", 1}}), server(3, "lock_free"),
        server(3, "asynchronous", {{"rate_exponent", 0.5}, {"delay_compensation", 0.04}})}) {
    for (const int processes : {1, 3}) {
      const Json document = calm_run(scratch / std::to_string(number++), strategy);
      const Trained trained = train_small(read_small(document), {.processes = processes});
      EXPECT_GT(trained.result.best.value.value_or(0), kLearnt) << strategy.dump() << " on " << processes;
    }
  }
}

TEST(Asynchronous, TellsHowOldGradientsWere) {
  const ScratchFolder scratch;
  for (const int processes : {1, 2}) {
    const tutti::Run run = read_small(run_with(scratch / std::to_string(processes), server(4, "asynchronous")));
    // What was done ahead of an interruption is told by who goes on.
    const Trained first = train_small(run, {.processes = processes, .interrupt_at = 6});
    const Trained trained = train_small(run, {.processes = processes, .resume = true});
    double gradients = 0;
    for (const Trained* part : {&first, &trained}) {
      for (const event::StepEnded& step : part->told->of<event::StepEnded>()) {
        for (const NamedNumber& count : step.counts) {
          if (count.name == "bytes_exchanged") continue;
          EXPECT_THAT(count.name, StartsWith("staleness_"));
          gradients += count.value;
        }
      }
    }
    EXPECT_EQ(gradients, 14 * 4);
    EXPECT_THAT(trained.told->of<event::RunStarted>()[0].engine, HasSubstr("the bits depend on who is faster"));
  }
}

// Parameters there, and gradients back, for each shard.
TEST(Asynchronous, CountsWhatGoesBetweenTheServerAndItsReplicas) {
  const ScratchFolder scratch;
  int number = 0;
  for (const char* consistency : {"asynchronous", "bounded_staleness", "lock_free"}) {
    for (const int processes : {1, 2}) {
      Json document = run_with(scratch / std::to_string(number++), server(2, consistency));
      document["graph"]["nodes"][0]["frozen"] = true;
      const tutti::Run run = read_small(document);
      double bytes = 0;
      for (const event::StepEnded& step : train_small(run, {.processes = processes}).told->of<event::StepEnded>()) {
        for (const NamedNumber& count : step.counts) bytes += count.name == "bytes_exchanged" ? count.value : 0;
      }
      constexpr double kTrained = 4.0 * (6 + 6 + 5 * 6 + 5 + 3 * 5 + 3);
      EXPECT_EQ(bytes, 14 * 2 * 2 * kTrained) << consistency << " on " << processes;
      EXPECT_EQ(footprint_of(run).moved, 2 * 2 * kTrained);
    }
  }
}

TEST(Asynchronous, SaysWhatItsBitsDependOn) {
  const ScratchFolder scratch;
  int number = 0;
  const auto engine = [&](const Json& strategy) {
    const Trained trained = train_small(read_small(run_with(scratch / std::to_string(number++), strategy)));
    return trained.told->of<event::RunStarted>()[0].engine;
  };
  EXPECT_EQ(engine(server(1, "asynchronous")),
            "1 replica sends gradients to one that has the parameters; nobody waits");
  EXPECT_EQ(engine(server(2, "asynchronous")),
            "2 replicas send gradients to one that has the parameters; nobody waits; the bits depend on who is faster");
}

// What the loss of an evaluation is of is what the checkpoint of the same step has, and no other.
TEST(Asynchronous, EvaluatesAndKeepsTheSameParameters) {
  const ScratchFolder scratch;
  int number = 0;
  for (const int replicas : {1, 2}) {
    for (const Json& strategy : {server(replicas, "asynchronous"), server(replicas, "bounded_staleness"),
                                 server(replicas, "lock_free"), gossip(replicas, "ring")}) {
      for (int processes = 1; processes <= replicas; ++processes) {
        SCOPED_TRACE(strategy.dump() + " on " + std::to_string(processes));
        Json document = run_with(scratch / std::to_string(number++), strategy);
        document["train"] = {{"steps", 20}, {"evaluate_every", 1}};
        document["checkpoints"] = {{"every", 1}, {"keep_last", 20}};
        const auto run = std::make_shared<const tutti::Run>(read_small(document));
        const Trained trained = train_small(*run, {.processes = processes});
        Evaluator evaluator(run, {});
        const DataSplits data = open_data(*run);
        int compared = 0;
        for (const event::EvaluationEnded& told : trained.told->of<event::EvaluationEnded>()) {
          const auto net = std::make_shared<GraphModule>(run->graph, run->seed);
          const std::filesystem::path folder = trained.result.last_checkpoint.parent_path();
          fill_module(weights_in(folder / fmt::format("step-{:09}.safetensors", told.step)), *net);
          const Evaluation its = evaluator.evaluate(net, data.test);
          EXPECT_EQ(told.loss, its.loss) << "step " << told.step;
          ++compared;
        }
        EXPECT_EQ(compared, 20);
      }
    }
  }
}

// Two heads, and the loss is of the first: the other one is computed, and stays what it is, whatever would shrink it.
TEST(Asynchronous, LeavesAloneWhatTheLossDoesNotDependOn) {
  const ScratchFolder scratch;
  int number = 0;
  const auto trained_with = [&](const Json& strategy, const Json& optimizer, int processes) {
    Json document = run_with(scratch / std::to_string(number++), strategy);
    document["optimizer"] = optimizer;
    document["train"] = {{"steps", 14}, {"clip_norm", 0.2}};
    document["loss"] = {{"name", "cross_entropy"}, {"class_weights", {1, 2, 0.5}}};
    Json& graph = document["graph"];
    graph["nodes"].push_back({{"id", "second"}, {"op", "linear"}, {"inputs", {"body"}}, {"units", 2}});
    graph["outputs"] = {"logits", "second"};
    return arrays_in(train_small(read_small(document), {.processes = processes}).result.last_checkpoint);
  };
  for (const Json& optimizer : {Json({{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}, {"weight_decay", 0.1}}),
                                Json({{"name", "adamw"}, {"lr", 0.01}, {"weight_decay", 0.5}})}) {
    SCOPED_TRACE(optimizer.dump());
    const ParameterSet local = trained_with({{"type", "Local"}}, optimizer, 1);
    for (const Json& strategy :
         {server(1, "asynchronous"), server(1, "bounded_staleness"), server(1, "lock_free"), gossip(1, "ring")}) {
      const ParameterSet its = trained_with(strategy, optimizer, 1);
      const bool has_roundings = strategy.dump().find("lock_free") != std::string::npos;
      expect_same_weights(its, local, has_roundings ? 1e-5 : 0);
      for (const char* name : {"second.weight", "second.bias"})
        EXPECT_TRUE(tensor_of(its.at(name)).equal(tensor_of(local.at(name)))) << name << ", " << strategy.dump();
    }
    // Replicas of the same rows have the same loss, so that they tell nothing apart; a head that is not trained does.
    for (const Json& strategy : {server(3, "asynchronous"), server(3, "lock_free"), gossip(3, "ring")}) {
      for (const int processes : {1, 2}) {
        const ParameterSet its = trained_with(strategy, optimizer, processes);
        EXPECT_TRUE(tensor_of(its.at("second.weight")).equal(tensor_of(local.at("second.weight")))) << strategy.dump();
      }
    }
  }
}

// A run with an operator in it that does something, and else nothing, whenever a replica computes.
tutti::Run read_with(const std::function<void()>& something, Json document) {
  Registry registry;
  registry.operators.add({.name = "something", .resolve = [=](const Options&, std::span<const ValueSpec> inputs) {
                            return Operator{.output = inputs[0], .compute = [=](const OperatorCall& call) {
                                              something();
                                              return 1 * call.inputs[0];
                                            }};
                          }});
  Json& nodes = document["graph"]["nodes"];
  nodes[2]["inputs"] = {"between"};
  nodes.insert(nodes.begin() + 2, Json{{"id", "between"}, {"op", "something"}, {"inputs", {"body"}}});
  return read_small(document, registry);
}

// Others may wait for the one that fails, and do not for as long as train.deadline says.
std::string failure_at_once(const tutti::Run& run, int processes) {
  const auto began = std::chrono::steady_clock::now();
  std::string why = "it should have failed";
  try {
    (void)train_small(run, {.processes = processes});
  } catch (const Error& error) {
    why = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, run.train.deadline / 4);
  return why;
}

const std::vector<Json>& all_consistencies() {
  static const std::vector<Json> all{server(3, "asynchronous"), server(3, "lock_free"), server(3, "bounded_staleness"),
                                     server(3, "bounded_staleness", {{"max_staleness", 0}})};
  return all;
}

TEST(Asynchronous, EndsForAllWhereAGradientIsNotFinite) {
  const ScratchFolder scratch;
  int number = 0;
  for (const Json& strategy : all_consistencies()) {
    for (const int processes : {1, 2}) {
      SCOPED_TRACE(strategy.dump() + " on " + std::to_string(processes));
      Json document = run_with(scratch / std::to_string(number++), strategy);
      document["optimizer"] = {{"name", "sgd"}, {"lr", 1e30}};
      const std::string why = failure_at_once(read_small(document), processes);
      EXPECT_THAT(why, StartsWith("step "));
      EXPECT_THAT(why, HasSubstr("infinite or not a number"));
    }
  }
}

// Whatever it throws, and whichever process it is on.
TEST(Asynchronous, EndsForAllWhereOneThrows) {
  const ScratchFolder scratch;
  int number = 0;
  for (const Json& strategy : all_consistencies()) {
    for (const int processes : {1, 2, 3}) {
      SCOPED_TRACE(strategy.dump() + " on " + std::to_string(processes));
      std::atomic<int> calls = 0;
      const auto trips = [&calls] {
        if (++calls == 5) throw 7;
      };
      const tutti::Run run = read_with(trips, run_with(scratch / std::to_string(number++), strategy));
      const std::string why = failure_at_once(run, processes);
      EXPECT_THAT(why, HasSubstr("what was thrown is no std::exception"));
    }
  }
}

// One of another process is given up, and what it was at is another's.
TEST(Asynchronous, GoesOnWithoutAReplicaThatTakesTooLong) {
  const ScratchFolder scratch;
  static thread_local bool is_elsewhere = false;
  std::atomic<int> calls = 0;
  const auto naps = [&calls] {
    if (is_elsewhere && ++calls == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  };
  Json document = run_with(scratch / "run", server(2, "bounded_staleness", {{"max_staleness", 0}}));
  document["train"] = {{"steps", 14}, {"deadline", 1}};
  const tutti::Run run = read_with(naps, document);
  const auto told = std::make_shared<Told>();
  std::int64_t steps = 0;
  std::string given_up;
  run_ranks(2, [&](Communicator& world) {
    const bool is_first = world.rank() == Rank{0};
    Events events;
    if (is_first) events.add(told);
    const auto note_place = [is_first] {  // before each task, on the thread that does it
      is_elsewhere = !is_first;
      return false;
    };
    try {
      const TrainResult result = train(run, events, {.world = &world, .is_interrupted = note_place});
      if (is_first) steps = result.step;
    } catch (const ToldElsewhere& error) {
      given_up = error.what();
    }
  });
  EXPECT_EQ(steps, 14);
  EXPECT_EQ(given_up, "replica 1 took longer than 1 s for a step, and the others go on without it");
  ASSERT_EQ(told->of<event::Warned>().size(), 1u);
  EXPECT_EQ(told->of<event::Warned>()[0].sentence,
            "replica 1, of process 1, was not heard of for 1 s; the others go on");
}

// Which is later for rank 0 than for itself: it hears so when it comes back, and does not wait for an answer.
TEST(Asynchronous, TellsAReplicaThatItWasGivenUp) {
  const ScratchFolder scratch;
  static thread_local bool is_elsewhere = false;
  std::atomic<bool> is_given_up = false;
  std::atomic<int> calls = 0;
  const auto waits = [&] {
    if (is_elsewhere && ++calls == 3) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!is_given_up && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
  };
  struct Hears final : Observer {
    explicit Hears(std::atomic<bool>& its) : flag(its) {}
    void on(const Event& event) override {
      if (std::holds_alternative<event::Warned>(event)) flag = true;
    }
    std::atomic<bool>& flag;
  };
  Json document = run_with(scratch / "run", server(2, "asynchronous"));
  document["train"] = {{"steps", 10000000}, {"deadline", 3}, {"evaluate_every", 10000000}};
  const tutti::Run run = read_with(waits, document);
  std::atomic<bool> has_heard = false;
  std::string given_up;
  run_ranks(2, [&](Communicator& world) {
    const bool is_first = world.rank() == Rank{0};
    Events events;
    if (is_first) events.add(std::make_shared<Hears>(is_given_up));
    tutti::Run its = run;
    if (!is_first) its.train.deadline = std::chrono::minutes(10);
    const auto note_place = [&, is_first] {
      is_elsewhere = !is_first;
      return is_first && has_heard;  // the run goes on until then
    };
    try {
      (void)train(its, events, {.world = &world, .is_interrupted = note_place});
    } catch (const ToldElsewhere& error) {
      given_up = error.what();
      has_heard = true;
    }
  });
  EXPECT_EQ(given_up, "replica 1 took longer than 3 s for a step, and the others go on without it");
}

// That is for steps: who waits for an evaluation is not late.
TEST(Asynchronous, TakesMoreTimeForAnEvaluationThanForAStep) {
  const ScratchFolder scratch;
  struct Slow final : Dataset {
    std::int64_t size() const override { return 30; }
    DataRows rows(std::span<const std::int64_t> numbers) const override {
      if (numbers.size() > 1 && numbers[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      const auto count = static_cast<std::int64_t>(numbers.size());
      return {.inputs = {torch::ones({count, 4})}, .target = torch::zeros({count}, torch::kInt64)};
    }
  };
  Registry registry;
  registry.data_sources.add(
      {.name = "slow", .resolve = [](const Options&) {
         const auto train =
             std::make_shared<TensorDataset>(std::vector{torch::ones({60, 4})}, torch::zeros({60}, torch::kInt64));
         return DataSource{.description = {.inputs = {{"point", {.shape = {4}}}},
                                           .target = {.shape = {}, .type = ValueType::int64},
                                           .classes = 3},
                           .open = [train] { return DataSplits{.train = train, .test = std::make_shared<Slow>()}; }};
       }});
  int number = 0;
  // Of the last batch of an epoch one of three replicas has no rows: its clock stands still.
  for (const Json& strategy : {server(2, "asynchronous"), server(2, "bounded_staleness", {{"max_staleness", 0}}),
                               server(3, "bounded_staleness", {{"max_staleness", 1}})}) {
    for (const int processes : {1, 2}) {
      SCOPED_TRACE(strategy.dump() + " on " + std::to_string(processes));
      Json document = run_with(scratch / std::to_string(number++), strategy);
      document["graph"]["nodes"][1]["nodes"][0]["op"] = "layer_norm";
      document["data"] = {{"source", "slow"}, {"batch_size", strategy["num_replicas"] == 3 ? 29 : 12}};
      document["train"] = {{"steps", 4}, {"evaluate_every", 2}, {"deadline", 1}};
      const Trained trained = train_small(read_small(document, registry), {.processes = processes});
      EXPECT_EQ(trained.result.step, 4);
      EXPECT_THAT(trained.told->of<event::Warned>(), IsEmpty());
    }
  }
}

// Nobody goes on a second time before so many have come twice.
class AllComeTwice {
 public:
  explicit AllComeTwice(std::size_t count) : count_(count) {}
  void operator()() {
    std::unique_lock lock(mutex_);
    if (++times_[std::this_thread::get_id()] < 2) return;
    have_come_.insert(std::this_thread::get_id());
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return have_come_.size() >= count_; });
  }

 private:
  std::size_t count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::thread::id, int> times_;
  std::set<std::thread::id> have_come_;
};

// Of all replicas, wherever they are, one span after the other from the run's beginning on.
void expect_spans_of(const Trained& trained, int replicas, const std::set<std::string>& here,
                     const std::set<std::string>& elsewhere, int processes) {
  std::vector<std::set<std::string>> names(static_cast<std::size_t>(replicas));
  std::vector<double> last(static_cast<std::size_t>(replicas));
  for (const event::SpanEnded& span : trained.told->of<event::SpanEnded>()) {
    ASSERT_LT(span.rank, replicas);
    const auto r = static_cast<std::size_t>(span.rank);
    names[r].insert(span.name);
    EXPECT_LE(span.begin, span.end);
    EXPECT_GE(span.begin, last[r] - 1e-9) << span.name;
    last[r] = span.end;
  }
  const std::size_t first_elsewhere = chunk(static_cast<std::size_t>(replicas), processes, 0).end();
  for (std::size_t r = 0; r < names.size(); ++r) {
    EXPECT_EQ(names[r], r < first_elsewhere ? here : elsewhere) << "replica " << r;
  }
}

TEST(Asynchronous, TellsWhatReplicasDidWhen) {
  const ScratchFolder scratch;
  for (const int processes : {1, 3}) {
    const auto all_come = std::make_shared<AllComeTwice>(3);
    const tutti::Run run = read_with([all_come] { (*all_come)(); },
                                     run_with(scratch / std::to_string(processes), server(3, "asynchronous")));
    const Trained trained = train_small(run, {.processes = processes, .trace = true});
    expect_spans_of(trained, 3, {"load", "gradients", "wait", "push"}, {"load", "gradients", "wait", "send", "receive"},
                    processes);
  }
}

// On some processes, and then on others; with replicas that are not dealt out evenly.
TEST(Gossip, LearnsAndGoesOn) {
  const ScratchFolder scratch;
  for (const char* topology : {"ring", "complete", "exponential", "torus", "random"}) {
    for (const int processes : {1, 2, 3}) {
      SCOPED_TRACE(std::string(topology) + " on " + std::to_string(processes));
      const Json document = calm_run(scratch / (topology + std::to_string(processes)), gossip(4, topology));
      const Trained first = train_small(read_small(document), {.processes = processes, .interrupt_at = 60});
      EXPECT_EQ(first.result.step, 60);
      const ParameterSet between = arrays_in(first.result.last_checkpoint);
      const Trained rest = train_small(read_small(document), {.processes = processes % 3 + 1, .resume = true});
      EXPECT_EQ(rest.result.step, 120);
      EXPECT_GT(rest.result.best.value.value_or(0), kLearnt);
      EXPECT_THAT(rest.told->of<event::RunStarted>()[0].engine, HasSubstr(std::string("topology ") + topology));
      // What is read is the mean of what everybody has.
      const ParameterSet arrays = arrays_in(rest.result.last_checkpoint);
      EXPECT_EQ(arrays.names(), between.names());
      torch::Tensor sum = torch::zeros({6, 4}, torch::kFloat64);
      for (const char* replica : {"0", "1", "2", "3"}) {
        sum += tensor_of(arrays.at(std::string("replica/") + replica + "/hidden.weight")).to(torch::kFloat64);
        const std::string optimizer = std::string("worker/") + replica + "/";
        EXPECT_THAT(arrays.names(), Contains(StartsWith(optimizer + "state")));
        // It went on from those that it had.
        EXPECT_GE(arrays.at(optimizer + "meetings").values<std::int64_t>()[0],
                  between.at(optimizer + "meetings").values<std::int64_t>()[0]);
      }
      EXPECT_LT((tensor_of(arrays.at("hidden.weight")).to(torch::kFloat64) - sum / 4).abs().max().item<double>(), 1e-6);
    }
  }
}

TEST(Gossip, TellsWhatReplicasDidWhen) {
  const ScratchFolder scratch;
  for (const int processes : {1, 2}) {
    const auto all_come = std::make_shared<AllComeTwice>(2);
    const tutti::Run run =
        read_with([all_come] { (*all_come)(); }, run_with(scratch / std::to_string(processes), gossip(2, "ring")));
    const Trained trained = train_small(run, {.processes = processes, .trace = true});
    expect_spans_of(trained, 2, {"load", "gradients", "wait", "meet"},
                    {"load", "gradients", "wait", "meet", "send", "receive"}, processes);
  }
}

TEST(Gossip, CountsWhatReplicasGiveToEachOther) {
  const ScratchFolder scratch;
  for (const int processes : {1, 2}) {
    const tutti::Run run = read_small(run_with(scratch / std::to_string(processes), gossip(3, "ring")));
    double bytes = 0;
    for (const event::StepEnded& step : train_small(run, {.processes = processes}).told->of<event::StepEnded>()) {
      ASSERT_EQ(step.counts.size(), 1);
      EXPECT_EQ(step.counts[0].name, "bytes_exchanged");
      bytes += step.counts[0].value;
    }
    // One that cannot meet who it draws has sent its own for nothing, and draws again.
    const double expected = 14 * footprint_of(run).moved.value_or(0);
    EXPECT_GE(bytes, processes == 1 ? expected : 0.5 * expected);
    EXPECT_LE(bytes, processes == 1 ? expected : 2.5 * expected);
  }
}

// Wherever it is, all hear its sentence.
TEST(Gossip, EndsForAllWhereAReplicaThrows) {
  struct Failing final : Dataset {
    std::int64_t size() const override { return 60; }
    DataRows rows(std::span<const std::int64_t> numbers) const override {
      if (++asked == 40) throw Error("the rows are gone");
      const auto count = static_cast<std::int64_t>(numbers.size());
      return {.inputs = {torch::ones({count, 4})}, .target = torch::zeros({count}, torch::kInt64)};
    }
    mutable std::atomic<int> asked = 0;
  };
  const ScratchFolder scratch;
  for (const int processes : {1, 2, 3}) {
    for (int again = 0; again < 5; ++again) {  // at another replica
      Registry registry;
      registry.data_sources.add(
          {.name = "failing", .resolve = [&](const Options&) {
             return DataSource{.description = {.inputs = {{"point", {.shape = {4}}}},
                                               .target = {.shape = {}, .type = ValueType::int64},
                                               .classes = 3},
                               .open = [its = std::make_shared<Failing>()] { return DataSplits{.train = its}; }};
           }});
      Json document = run_with(scratch / (std::to_string(processes) + std::to_string(again)), gossip(4, "complete"));
      document["data"] = {{"source", "failing"}, {"batch_size", 12}};
      document["train"] = {{"steps", 1000}};
      const tutti::Run run = read_run(JsonDocument::parse(document.dump(), "run.json").root(), registry);
      try {
        (void)train_small(run, {.processes = processes});
        ADD_FAILURE() << "it should have ended";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), StartsWith("step "));
        EXPECT_THAT(error.what(), HasSubstr("the rows are gone"));
      }
    }
  }
}

// There is nobody to meet.
TEST(Gossip, OfOneReplicaIsLocal) {
  const ScratchFolder scratch;
  Json document = run_with(scratch / "local", {{"type", "Local"}});
  const ParameterSet local = arrays_in(train_small(read_small(document)).result.last_checkpoint);
  document["output"] = (scratch / "gossip").string();
  document["graph"]["strategy"] = gossip(1, "ring");
  expect_same_weights(arrays_in(train_small(read_small(document)).result.last_checkpoint), local, 0);
}

// As `tutti check` tries a run.
TEST(Asynchronous, IsTriedForItsMemory) {
  const ScratchFolder scratch;
  for (const Json& strategy : {server(2, "bounded_staleness"), server(2, "lock_free"), gossip(2, "ring")}) {
    Json document = run_with(scratch / "run", strategy);
    document["schedule"] = {{"name", "step"}, {"every", 3}, {"factor", 0.5}};
    EXPECT_GT(measure_memory(read_small(document)), 0) << strategy.dump();
  }
  // Without locks, and where everybody has all parameters, so has everybody an optimizer.
  const auto optimizer_state = [&](const Json& strategy) {
    return footprint_of(read_small(run_with(scratch / "run", strategy))).optimizer_state;
  };
  const double one = optimizer_state(server(3, "asynchronous"));
  EXPECT_GT(one, 0);
  EXPECT_EQ(optimizer_state(server(3, "bounded_staleness")), one);
  EXPECT_EQ(optimizer_state(server(3, "lock_free")), 3 * one);
  EXPECT_EQ(optimizer_state(gossip(3, "ring")), 3 * one);
  // Each has a net and what it computes of, and the run has one to evaluate.
  const auto parameters = [&](const Json& strategy) {
    return footprint_of(read_small(run_with(scratch / "run", strategy))).parameters;
  };
  const double net = parameters({{"type", "Local"}});
  const double trained = one;  // momentum has as much
  EXPECT_EQ(parameters(server(3, "asynchronous")), 4 * net + 4 * trained);
  EXPECT_EQ(parameters(server(3, "lock_free")), 4 * net + 7 * trained);
  EXPECT_EQ(parameters(gossip(3, "ring")), 4 * net + 6 * trained);
}

// With as many replicas as a run file may have.
TEST(Gossip, HasAFootprintOfManyReplicasAtOnce) {
  const ScratchFolder scratch;
  constexpr double kMany = 65536;
  const auto moved = [&](const Json& aggregation) {
    Json document = run_with(scratch / "run", gossip(65536, "complete"));
    document["graph"]["strategy"]["aggregation"] = aggregation;
    document["data"]["batch_size"] = 2 * 65536;
    document["data"]["rows"] = 3 * 65536;
    return footprint_of(read_small(document)).moved.value_or(0);
  };
  const double one = moved({{"method", "Decentralized"}, {"topology", "complete"}}) / (kMany * (kMany - 1));
  EXPECT_GT(one, 0);
  EXPECT_EQ(moved({{"method", "Decentralized"}, {"topology", "ring"}}), 2 * kMany * one);
  EXPECT_EQ(moved({{"method", "Decentralized"}, {"topology", "complete"}, {"gossip", true}}), 2 * kMany * one);
}

TEST(Asynchronous, RefusesWhatNeedsStepsThatAreTakenTogether) {
  const ScratchFolder scratch;
  const auto refused = [&](const auto& change) {
    Json document = run_with(scratch / "run", server(2, "asynchronous"));
    change(document);
    return why_not_trainable(read_small(document), 1).value_or("");
  };
  EXPECT_EQ(refused([](Json&) {}), "");
  EXPECT_EQ(refused([](Json& run) { run["train"]["accumulate"] = 2; }),
            "train.accumulate: replicas that do not wait for each other take 1 step to an update, found 2");
  EXPECT_EQ(refused([](Json& run) {
              run["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
            }),
            "replicas that do not wait for each other share all parameters, and a subgraph is Local");
}

TEST(Asynchronous, SaysWhereACheckpointIsOfAnotherKindOfRun) {
  const ScratchFolder scratch;
  Json document = run_with(scratch / "run", data_parallel(2));
  (void)train_small(read_small(document), {.interrupt_at = 3});
  document["graph"]["strategy"] = server(2, "asynchronous");
  EXPECT_THAT(usage_error([&] { (void)train_small(read_small(document), {.resume = true}); }),
              HasSubstr("--from begins with its weights"));
  // Nor the other way round: their momentum would be lost, and rows be taken twice.
  int number = 0;
  for (const Json& before : {server(2, "asynchronous"), server(2, "lock_free"), gossip(2, "ring")}) {
    document["output"] = (scratch / std::to_string(number++)).string();
    document["graph"]["strategy"] = before;
    (void)train_small(read_small(document), {.interrupt_at = 3});
    for (const Json& after : {data_parallel(2), Json({{"type", "Local"}}), server(2, "synchronous"),
                              Json::parse(R"({"type": "DataParallel", "num_replicas": 2,
                                              "aggregation": {"method": "Decentralized", "topology": "ring"}})")}) {
      document["graph"]["strategy"] = after;
      EXPECT_THAT(usage_error([&] { (void)train_small(read_small(document), {.resume = true}); }),
                  StartsWith("the checkpoint is of replicas that do not wait for each other, and this is "))
          << before.dump() << " to " << after.dump();
    }
  }
}

TEST(Asynchronous, RefusesToGoOnWithWhatAnotherConsistencyKeeps) {
  const ScratchFolder scratch;
  int number = 0;
  const std::vector<std::pair<Json, std::string>> kinds{
      {server(2, "asynchronous"), "a parameter server with versions (consistency asynchronous or bounded_staleness)"},
      {server(2, "bounded_staleness"),
       "a parameter server with versions (consistency asynchronous or bounded_staleness)"},
      {server(2, "lock_free"), "parameters that all share without versions (consistency lock_free)"},
      {gossip(2, "ring"), "replicas that gossip (Decentralized)"},
      {data_parallel(2), "replicas that take their steps together"}};
  for (const auto& [before, words] : kinds) {
    Json document = run_with(scratch / std::to_string(number++), before);
    (void)train_small(read_small(document), {.interrupt_at = 3});
    for (const auto& [after, other] : kinds) {
      if (other == words || after == data_parallel(2)) continue;
      document["graph"]["strategy"] = after;
      EXPECT_EQ(usage_error([&] { (void)train_small(read_small(document), {.resume = true}); }),
                "the checkpoint is of " + words + ", and this is " +
                    to_string(read_small(document).graph.effective_strategy()) + "; --from begins with its weights");
    }
  }
  // Those with versions keep the same.
  Json document = run_with(scratch / "versions", server(2, "asynchronous"));
  (void)train_small(read_small(document), {.interrupt_at = 3});
  document["graph"]["strategy"] = server(2, "bounded_staleness");
  EXPECT_EQ(train_small(read_small(document), {.resume = true}).result.step, 14);
}

// What those had learnt who are no more is in the mean, and stays.
TEST(Gossip, BeginsWithTheMeanWhereThereAreFewerReplicas) {
  const ScratchFolder scratch;
  int number = 0;
  for (const bool is_gossip : {true, false}) {
    for (const int processes : {1, 2}) {
      SCOPED_TRACE((is_gossip ? "gossip" : "step by step") + std::string(" on ") + std::to_string(processes));
      Json document = run_with(scratch / std::to_string(number++), gossip(4, "ring"));
      document["graph"]["strategy"]["aggregation"]["gossip"] = is_gossip;
      const ParameterSet before =
          arrays_in(train_small(read_small(document), {.interrupt_at = 6}).result.last_checkpoint);
      // Nothing is learnt from now on.
      document["graph"]["strategy"]["num_replicas"] = 2;
      document["optimizer"]["lr"] = 0;
      const Trained rest = train_small(read_small(document), {.processes = processes, .resume = true});
      EXPECT_EQ(rest.result.step, 14);
      const ParameterSet after = arrays_in(rest.result.last_checkpoint);
      for (const char* name : {"hidden.weight", "body.wide.weight", "logits.bias"}) {
        const torch::Tensor moved = tensor_of(after.at(name)) - tensor_of(before.at(name));
        EXPECT_LT(moved.abs().max().item<double>(), 1e-6) << name;
      }
      EXPECT_THAT(
          rest.told->of<event::Warned>(),
          Contains(::testing::Field(&event::Warned::sentence,
                                    "the checkpoint is of more replicas than there are: all begin with the mean "
                                    "of them")));
    }
  }
}

// Nobody learns anything, so that meetings alone change what replicas have: their mean stays, and they come together as
// fast as the topology promises, if all meet about as often: they take their time. With the threads that train.
TEST(Gossip, AgreesAsFastAsItsTopologyPromises) {
  const ScratchFolder scratch;
  constexpr int kReplicas = 4;
  for (const char* topology : {"ring", "complete"}) {
    SCOPED_TRACE(topology);
    Json document = run_with(scratch / topology, gossip(kReplicas, topology));
    document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
    const auto takes_time = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    document["train"]["steps"] = 2;
    const Trained first = train_small(read_with(takes_time, document));
    document["train"]["steps"] = 20;
    const tutti::Run run = read_with(takes_time, document);
    Checkpoint checkpoint = read_checkpoint(first.result.last_checkpoint);
    const auto own_weights = [](ParameterSet& arrays, int replica) {
      return arrays.find("replica/" + std::to_string(replica) + "/hidden.weight")->values<float>();
    };
    RandomStream draws({11});
    for (int replica = 0; replica < kReplicas; ++replica) {
      for (float& number : own_weights(checkpoint.arrays, replica)) number = static_cast<float>(draws.normal());
    }
    const auto mean_and_spread = [&](ParameterSet& arrays) {
      std::vector<double> mean(own_weights(arrays, 0).size());
      for (int replica = 0; replica < kReplicas; ++replica) {
        for (std::size_t i = 0; i < mean.size(); ++i)
          mean[i] += static_cast<double>(own_weights(arrays, replica)[i]) / kReplicas;
      }
      double squares = 0;
      for (int replica = 0; replica < kReplicas; ++replica) {
        for (std::size_t i = 0; i < mean.size(); ++i)
          squares += std::pow(static_cast<double>(own_weights(arrays, replica)[i]) - mean[i], 2);
      }
      return std::pair(mean, squares);
    };
    const auto [mean_before, spread_before] = mean_and_spread(checkpoint.arrays);
    (void)CheckpointFolder(scratch / topology / "checkpoints", run.checkpoints).write(checkpoint);
    const Trained rest = train_small(run, {.resume = true});
    ASSERT_EQ(rest.result.step, 20);
    Checkpoint last = read_checkpoint(rest.result.last_checkpoint);
    const auto [mean_after, spread_after] = mean_and_spread(last.arrays);
    for (std::size_t i = 0; i < mean_before.size(); ++i) EXPECT_NEAR(mean_after[i], mean_before[i], 1e-5);
    // A meeting for each gradient. Who has time takes the next, so that not all are quite as likely to begin one: half
    // of the rate is asked for, and what is expected is not what comes each time.
    const auto& parallel = std::get<strategy::DataParallel>(run.graph.effective_strategy());
    const MixingMatrix mixing(std::get<strategy::Decentralized>(parallel.aggregation).topology,
                              {.replicas = kReplicas, .seed = run.seed});
    const double meetings = static_cast<double>(rest.result.step - checkpoint.state.step) * kReplicas;
    EXPECT_LT(spread_after, 100 * spread_before * std::pow(mixing.gossip_eigenvalue(), meetings / 2));
    EXPECT_GT(spread_before, 1);
  }
}

}  // namespace
}  // namespace tutti::asynchronous_test
