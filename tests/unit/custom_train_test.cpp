// Coordinators that a program registers: what they are told, that they train, and that they go on where they ended.
#include <tutti/train/coordinator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/plain_coordinator.hpp"
#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::custom_train_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Reason = event::RunEnded::Reason;

Json custom(const Json& config, const std::string& coordinator = "plain") {
  return {{"type", "Custom"}, {"coordinator", coordinator}, {"config", config}};
}

Json custom_run(const std::filesystem::path& output, const Json& config = {{"replicas", 2}}) {
  Json document = small_run(output);
  document["graph"]["strategy"] = custom(config);
  return document;
}

Run read_custom(const Json& document) {
  Registry registry;
  add_plain_coordinators(registry.coordinators);
  return read_small(document, registry);
}

std::vector<double> losses_of(const Trained& trained) {
  std::vector<double> losses;
  for (const auto& step : trained.told->of<event::StepEnded>()) losses.push_back(step.loss);
  for (const auto& evaluation : trained.told->of<event::EvaluationEnded>()) losses.push_back(evaluation.loss);
  return losses;
}

// --- as a strategy of tutti's own ---

TEST(CustomCoordinator, LearnsToTheBitWhatTheStrategyDoesThatItImitatesOnThreadsAndProcesses) {
  const ScratchFolder scratch;
  for (const int processes : {1, 2}) {
    SCOPED_TRACE(processes);
    const std::string name = std::to_string(processes);
    Json document = custom_run(scratch / ("custom" + name));
    document["train"] = {{"steps", 14}, {"evaluate_every", 4}, {"clip_norm", 1}};
    document["schedule"] = "cosine";
    const Trained mine = train_small(read_custom(document), {.processes = processes});
    document["output"] = (scratch / ("own" + name)).string();
    document["graph"]["strategy"] = data_parallel(2);
    const Trained own = train_small(read_custom(document), {.processes = processes});
    EXPECT_EQ(losses_of(mine), losses_of(own));
    EXPECT_EQ(arrays_in(mine.result.last_checkpoint), arrays_in(own.result.last_checkpoint));
    EXPECT_EQ(mine.result.best.step, own.result.best.step);
  }
}

TEST(CustomCoordinator, TellsWhatTheOthersTell) {
  const ScratchFolder scratch;
  const Trained trained = train_small(
      read_custom(custom_run(scratch / "run", {{"replicas", 1}, {"failure", "complains"}, {"fails_at", 3}})));
  const auto started = trained.told->of<event::RunStarted>();
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].strategy, "Custom: plain");
  EXPECT_EQ(started[0].engine, "as plain as can be");
  EXPECT_THAT(started[0].notes, ElementsAre("a note"));
  EXPECT_EQ(started[0].steps, 14);
  EXPECT_EQ(started[0].rows_per_step, 10);
  std::vector<std::string> warnings;
  for (const auto& warned : trained.told->of<event::Warned>()) warnings.push_back(warned.sentence);
  EXPECT_THAT(warnings, ElementsAre("a warning", "plain, and no more", "it goes on in spite of this"));
  const auto steps = trained.told->of<event::StepEnded>();
  ASSERT_EQ(steps.size(), 14u);
  EXPECT_EQ(steps[4].metrics, (std::vector<NamedNumber>{{"steps_taken", 5}}));
  EXPECT_EQ(steps[4].counts, (std::vector<NamedNumber>{{"baton", 1}}));
  EXPECT_EQ(steps[4].lr, 0.05);
  EXPECT_EQ(trained.told->of<event::EvaluationEnded>().size(), 2u);
  EXPECT_EQ(trained.told->of<event::CheckpointWritten>().size(), 2u);
  EXPECT_EQ(trained.result.best.of, "test accuracy");
}

TEST(CustomCoordinator, GoesOnToTheBitWhereItWasInterrupted) {
  const ScratchFolder scratch;
  const Trained whole = train_small(read_custom(custom_run(scratch / "whole")));
  for (const int processes : {1, 2}) {
    SCOPED_TRACE(processes);
    const tutti::Run run = read_custom(custom_run(scratch / std::to_string(processes)));
    const Trained part = train_small(run, {.processes = processes, .interrupt_at = 5});
    EXPECT_EQ(part.result.reason, Reason::interrupted);
    EXPECT_EQ(part.result.step, 5);
    const Trained rest = train_small(run, {.processes = 3 - processes, .resume = true});
    EXPECT_EQ(rest.told->of<event::RunStarted>().front().first_step, 5);
    EXPECT_EQ(arrays_in(rest.result.last_checkpoint), arrays_in(whole.result.last_checkpoint));
  }
}

TEST(CustomCoordinator, BeginsWithTheWeightsOfAnotherRun) {
  const ScratchFolder scratch;
  Json document = small_run(scratch / "other");
  const Trained other = train_small(read_custom(document));
  document = custom_run(scratch / "run");
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
  const Trained trained = train_small(read_custom(document), {.from = other.result.last_checkpoint});
  const ParameterSet weights = arrays_in(trained.result.last_checkpoint);
  EXPECT_EQ(weights.at("logits.weight").bytes().size(), 5u * 3u * 4u);
  const ParameterSet before = arrays_in(other.result.last_checkpoint);
  EXPECT_TRUE(std::ranges::equal(weights.at("logits.weight").bytes(), before.at("logits.weight").bytes()));
}

TEST(CustomCoordinator, IsTheSameRunWhenTheResolvedFileIsReadAgain) {
  const ScratchFolder scratch;
  (void)train_small(read_custom(custom_run(scratch / "run")));
  const Json resolved = Json::parse(content_of(scratch / "run" / "run.json"));
  EXPECT_EQ(resolved["graph"]["strategy"], custom({{"replicas", 2}}));
  EXPECT_EQ(*read_custom(resolved).resolved, resolved);
}

// --- what is refused when the run is read ---

std::string refused(const Json& strategy, bool has_coordinators = true) {
  Json document = small_run("never");
  document["graph"]["strategy"] = strategy;
  Registry registry;
  if (has_coordinators) add_plain_coordinators(registry.coordinators);
  return usage_error([&] { (void)read_small(document, registry); });
}

TEST(CustomCoordinatorRefuses, NamesThatNobodyRegistered) {
  EXPECT_THAT(
      refused(custom(Json::object(), "plian")),
      HasSubstr("graph.strategy.coordinator: there is no coordinator 'plian'; did you mean 'plain'? expected one "
                "of plain, solo; --plugin names a library that brings one"));
  EXPECT_THAT(refused(custom(Json::object(), "orchestra")), HasSubstr("'orchestra'; expected one of plain, solo; "));
  EXPECT_THAT(refused(custom(Json::object()), false),
              HasSubstr("there is no coordinator 'plain', nor any other: tutti has none of its own; --plugin"));
}

TEST(CustomCoordinatorRefuses, AConfigAtItsPlace) {
  EXPECT_THAT(refused(custom({{"replicas", 0}})),
              EndsWith(": graph.strategy.config.replicas: expected a whole number from 1 to 10, found 0"));
  EXPECT_THAT(refused(custom({{"replicas", 11}})), HasSubstr("a whole number from 1 to 10, found 11"));
  EXPECT_THAT(refused(custom({{"replicas", 1}, {"replica", 1}})),
              EndsWith(R"(: graph.strategy.config: unknown key "replica"; did you mean "replicas"?)"));
  EXPECT_THAT(refused(custom(Json::object())), EndsWith(R"(: graph.strategy.config: missing key "replicas")"));
  EXPECT_THAT(refused(custom({1, 2})), HasSubstr("graph.strategy.config: expected an object"));
  const std::string without = refused({{"type", "Custom"}, {"coordinator", "plain"}});
  EXPECT_THAT(without, StartsWith("run.json:1:"));
  EXPECT_THAT(without, HasSubstr(R"(graph.strategy)"));
  EXPECT_THAT(without, EndsWith(R"(missing key "replicas")"));
}

TEST(CustomCoordinatorRefuses, OnesThatAreNotWhole) {
  CoordinatorRegistry registry;
  EXPECT_EQ(usage_error([&] { registry.add({.name = "mine", .resolve = {}}); }),
            "the coordinator 'mine' has no function");
  add_plain_coordinators(registry);
  EXPECT_EQ(usage_error([&] { add_plain_coordinators(registry); }), "the coordinator 'plain' is there already");
  Registry empty;
  empty.coordinators.add({.name = "empty", .resolve = [](const Options&, const tutti::Run&) { return Coordinator(); }});
  empty.coordinators.add({.name = "moody", .resolve = [](const Options&, const tutti::Run&) -> Coordinator {
                            throw std::runtime_error("not in the mood");
                          }});
  Json document = small_run("never");
  document["graph"]["strategy"] = custom(Json::object(), "empty");
  EXPECT_THAT(usage_error([&] { (void)read_small(document, empty); }),
              EndsWith("graph.strategy.coordinator: it was made without the function 'make'"));
  document["graph"]["strategy"] = custom(Json::object(), "moody");
  EXPECT_THAT(usage_error([&] { (void)read_small(document, empty); }),
              EndsWith("graph.strategy.config: not in the mood"));
}

TEST(CustomCoordinatorRefuses, PhasesAndASearch) {
  Json document = custom_run("never");
  document["train"] = Json::object();
  document["phases"] = Json::parse(R"([{"steps": 3}])");
  EXPECT_THAT(usage_error([&] { (void)read_custom(document); }), HasSubstr("Custom has no phases"));
}

// --- what goes wrong later ---

TEST(CustomCoordinatorRefuses, SeveralProcessesWhereItIsForOne) {
  Json document = custom_run("never");
  document["graph"]["strategy"]["coordinator"] = "solo";
  EXPECT_EQ(why_not_trainable(read_custom(document), 2), "the coordinator 'solo' is for one process, and there are 2");
  EXPECT_EQ(why_not_trainable(read_custom(document), 1), std::nullopt);
  EXPECT_EQ(why_not_trainable(read_custom(custom_run("never")), 2), std::nullopt);
  tutti::Run run = read_custom(small_run("never"));
  run.graph.set_strategy(strategy::Custom{.coordinator = "plain"});
  EXPECT_EQ(why_not_trainable(run, 1), "the coordinator 'plain' was not there when the run was read");
}

TEST(CustomCoordinator, LeavesNothingBehindWhereItRefusesToTrain) {
  const ScratchFolder scratch;
  const auto refusal = [&](const char* failure) {
    return usage_error([&] {
      (void)train_small(read_custom(custom_run(scratch / "run", {{"replicas", 1}, {"failure", failure}})));
    });
  };
  EXPECT_EQ(refusal("refuses"), "not today");
  EXPECT_EQ(refusal("makes_nothing"), "the coordinator 'plain' made no stepper");
  EXPECT_FALSE(std::filesystem::exists(scratch / "run"));
}

TEST(CustomCoordinator, EndsTheRunWithASentenceAndKeepsItsCheckpoints) {
  const ScratchFolder scratch;
  const auto failure_of = [&](const char* how) {
    return error_of([&] {
      (void)train_small(read_custom(custom_run(scratch / how, {{"replicas", 1}, {"failure", how}, {"fails_at", 9}})));
    });
  };
  EXPECT_EQ(failure_of("stumbles"), "step 9: the baton fell");
  EXPECT_EQ(failure_of("is_no_tutti"), "step 9: what a user throws");
  EXPECT_THAT(failure_of("breaks_torch"), StartsWith("step 9: mat1 and mat2 shapes cannot be multiplied"));
  EXPECT_EQ(read_checkpoint(scratch / "stumbles/checkpoints/last.safetensors").state.step, 7);
  EXPECT_EQ(failure_of("forgets_weights"),
            "the coordinator 'plain' saved no 'hidden.weight'; add_module(arrays, *net) adds all weights");
  EXPECT_EQ(failure_of("forgets_buffers"),
            "the coordinator 'plain' saved no 'body.norm.running_mean'; add_module(arrays, *net) adds all weights");
  EXPECT_EQ(failure_of("saves_other_shapes"),
            "the coordinator 'plain' saved 'logits.bias' as float32 [7], expected float32 [3]");
  EXPECT_EQ(
      failure_of("forgets_metrics"),
      "the coordinator 'plain' evaluated without 'perplexity', which is among the run's metrics; an Evaluator has "
      "them all");
}

// Nobody waits for the one that fails alone, and only that one says why.
TEST(CustomCoordinator, EndsOnAllProcessesWhereItFailsOnOne) {
  const ScratchFolder scratch;
  for (const int fails_on : {0, 1}) {
    SCOPED_TRACE(fails_on);
    const tutti::Run run =
        read_custom(custom_run(scratch / std::to_string(fails_on),
                               {{"replicas", 2}, {"failure", "is_no_tutti"}, {"fails_at", 3}, {"fails_on", fails_on}}));
    std::vector<std::string> said(2);
    run_ranks(2, [&](Communicator& world) {
      std::string& mine = said[static_cast<std::size_t>(world.rank().value)];
      try {
        (void)train(run, Events(), {.world = &world});
        mine = "nothing";
      } catch (const ToldElsewhere&) {
        mine = "told elsewhere";
      } catch (const Error& error) {
        mine = error.what();
      }
    });
    EXPECT_EQ(said[static_cast<std::size_t>(fails_on)], "step 3: what a user throws");
    EXPECT_EQ(said[static_cast<std::size_t>(1 - fails_on)], "told elsewhere");
  }
}

TEST(CustomCoordinator, GoesOnFromItsOwnCheckpointsAlone) {
  const ScratchFolder scratch;
  (void)train_small(read_custom(custom_run(scratch / "run")), {.interrupt_at = 3});
  const auto resumed_as = [&](const Json& strategy) {
    Json document = custom_run(scratch / "run");
    document["graph"]["strategy"] = strategy;
    return usage_error([&] { (void)train_small(read_custom(document), {.resume = true}); });
  };
  EXPECT_EQ(
      resumed_as(custom({{"replicas", 2}}, "solo")),
      R"(the checkpoint is of the coordinator "plain", and this is Custom: solo; --from begins with its weights)");
  EXPECT_EQ(resumed_as({{"type", "Local"}}),
            R"(the checkpoint is of the coordinator "plain", and this is Local; --from begins with its weights)");
  (void)train_small(read_custom(small_run(scratch / "own")), {.interrupt_at = 3});
  EXPECT_EQ(
      usage_error([&] { (void)train_small(read_custom(custom_run(scratch / "own")), {.resume = true}); }),
      "the checkpoint is of a strategy of tutti's own, and this is Custom: plain; --from begins with its weights");
}

TEST(CustomCoordinator, SaysThatItsConfigHasChanged) {
  const ScratchFolder scratch;
  (void)train_small(read_custom(custom_run(scratch / "run")), {.interrupt_at = 3});
  const Trained rest =
      train_small(read_custom(custom_run(scratch / "run", {{"replicas", 1}})), {.resume = true, .interrupt_at = 1});
  EXPECT_THAT(rest.told->of<event::Warned>().front().sentence, EndsWith("was written: graph.strategy.config"));
}

}  // namespace
}  // namespace tutti::custom_train_test
