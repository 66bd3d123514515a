#include "data_parallel_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tutti/base/error.hpp>

namespace tutti::bench {
namespace {

StepResult step(std::string engine, std::string model, int batch, double seconds, int threads = 1) {
  return {.engine = std::move(engine),
          .model = std::move(model),
          .batch = batch,
          .threads = threads,
          .timing = {.median = seconds, .p10 = seconds, .p90 = seconds, .repetitions = 5, .batch = 10}};
}

MemoryResult memory(int replicas, std::uint64_t resident) {
  return {.engine = "tutti",
          .model = std::string(kMemoryModel),
          .replicas = replicas,
          .batch = 8,
          .resident_bytes = resident,
          .parameter_bytes = 100};
}

AgreementResult agreement(double difference) {
  return {.engine = "tutti",
          .peer = "ddp",
          .model = "mlp-256",
          .batch = 64,
          .steps = 50,
          .largest_loss_difference = difference};
}

AccuracyResult accuracy(std::string compression, double share) {
  return {.engine = "tutti",
          .model = std::string(kAccuracyModel),
          .batch = 64,
          .compression = std::move(compression),
          .epochs = 3,
          .accuracy = share,
          .gradient_bytes = 1000,
          .sent_bytes = 20};
}

// Everything just at its target.
DataParallelMeasurements just_reached() {
  DataParallelMeasurements measured;
  for (const std::string_view name : kStepModels) {
    const std::string model(name);
    for (const int batch : {64, 512}) {
      measured.steps.push_back(step("tutti", model, batch, 1.09));
      measured.steps.push_back(step("never-talk", model, batch, 1));
      measured.steps.push_back(step("tutti-processes", model, batch, 1.8));
      measured.steps.push_back(step("ddp", model, batch, batch == 64 ? 2.75 : 1.26));
      measured.steps.push_back(step("single", model, batch, 1.10));
    }
  }
  measured.memory = {memory(1, 1000), memory(8, 1149)};
  measured.agreement = agreement(9e-5);
  measured.accuracy = {accuracy("NoCompression", 0.9), accuracy("TopK:0.01", 0.8901), accuracy("Float16", 0.91)};
  return measured;
}

std::vector<std::string> missed(const DataParallelMeasurements& measured) {
  std::vector<std::string> targets;
  for (const Judgement& judgement : judge_data_parallel_targets(measured))
    if (!judgement.reached) targets.push_back(judgement.target);
  return targets;
}

TEST(DataParallelTargets, AreReachedWhereEverythingIsGoodEnough) {
  EXPECT_EQ(judge_data_parallel_targets(just_reached()).size(), 8u);
  EXPECT_EQ(missed(just_reached()), std::vector<std::string>{});
}

TEST(DataParallelTargets, AreMissedOneByOne) {
  struct Change {
    std::string engine, model;
    int batch;
    double seconds;
    std::string target;
  };
  const std::string never_talk =
      "every model and batch: threads take at most 1.10 times the time of replicas that never talk";
  const std::string small = "mlp-256 and mlp-1024, batch 64: threads have at least 2.5 times DDP's speed";
  const std::string large = "mlp-256 and mlp-1024, batch 512: threads have at least 1.15 times DDP's speed";
  const std::string single =
      "mlp-1024 and mlp-2048: threads have at least the speed of a single loop, with 1 or 2 BLAS threads";
  const std::string processes = "every MLP, batch 64: processes have at least 1.5 times DDP's speed";
  const Change changes[] = {
      {"never-talk", "cnn", 512, 0.98, never_talk},
      {"never-talk", "mlp-256", 64, 0.98, never_talk},
      {"ddp", "mlp-256", 64, 2.71, small},
      {"ddp", "mlp-1024", 64, 2.71, small},
      {"ddp", "mlp-256", 512, 1.25, large},
      {"ddp", "mlp-1024", 512, 1.25, large},
      {"single", "mlp-1024", 64, 1.08, single},
      {"single", "mlp-2048", 512, 1.08, single},
      {"tutti-processes", "mlp-256", 64, 1.9, processes},
      {"tutti-processes", "mlp-2048", 64, 1.9, processes},
  };
  for (const Change& change : changes) {
    DataParallelMeasurements measured = just_reached();
    for (StepResult& result : measured.steps) {
      if (result.engine == change.engine && result.place() == StepPlace{change.model, change.batch})
        result.timing.median = change.seconds;
    }
    EXPECT_EQ(missed(measured), std::vector<std::string>{change.target}) << change.engine << " " << change.model;
  }
  DataParallelMeasurements measured = just_reached();
  measured.memory.back().resident_bytes = 1151;
  measured.agreement = agreement(1.1e-4);
  measured.accuracy[1].accuracy = 0.8899;
  EXPECT_THAT(missed(measured),
              testing::ElementsAre("mlp-50m with Adam, batch 8: 8 replicas take at most 1.15 times the memory of one",
                                   "mlp-256, 50 steps: the loss differs from DDP's by at most 1e-4",
                                   "cnn on Fashion-MNIST: every compression is within 1 point of none"));
}

TEST(DataParallelTargets, AreNeverReachedByWhatWasNotMeasured) {
  EXPECT_EQ(missed({}).size(), 8u);
  for (const std::string engine : {"tutti", "tutti-processes", "ddp", "single", "never-talk"}) {
    DataParallelMeasurements measured = just_reached();
    std::erase_if(measured.steps, [&](const StepResult& result) { return result.engine == engine; });
    EXPECT_FALSE(missed(measured).empty()) << engine;
  }
  DataParallelMeasurements only_plain = just_reached();
  only_plain.accuracy.resize(1);
  EXPECT_EQ(missed(only_plain).size(), 1u);
  for (const Judgement& judgement : judge_data_parallel_targets({})) EXPECT_EQ(judgement.measured, "");
}

TEST(DataParallelSteps, OfALoopCountWithTheBetterNumberOfThreads) {
  const std::vector<StepResult> points{step("single", "cnn", 64, 2, 1), step("single", "cnn", 64, 1, 2),
                                       step("single", "cnn", 512, 3, 1), step("single", "cnn", 512, 4, 2)};
  const std::vector<StepResult> fastest = fastest_of_each_engine(points);
  ASSERT_EQ(fastest.size(), 2u);
  EXPECT_EQ(fastest[0].threads, 2);
  EXPECT_EQ(fastest[1].threads, 1);
}

TEST(DataParallelSteps, AreCombinedOverThePassesInTheOrderOfTheModels) {
  std::vector<StepResult> results;
  for (const double seconds : {3.0, 1.0, 2.0}) {
    for (const char* model : {"cnn", "mlp-1024", "mlp-256"}) results.push_back(step("ddp", model, 64, seconds));
  }
  const std::vector<StepResult> points = combine_passes(results);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].model, "mlp-256");
  EXPECT_EQ(points[1].model, "mlp-1024");
  EXPECT_EQ(points[2].model, "cnn");
  for (const StepResult& point : points) EXPECT_EQ(point.timing.median, 2);
}

TEST(DataParallelResults, ComeBackFromTheirLines) {
  const std::string line = to_json_line(step("single", "cnn", 64, 0.5, 2));
  EXPECT_TRUE(line.starts_with(R"({"engine":"single","model":"cnn","batch":64,"seconds":0.5,)")) << line;
  EXPECT_EQ(to_json_line(parse_step_result(line)), line);
  const std::string memory_line = to_json_line(memory(8, 1000));
  EXPECT_EQ(to_json_line(parse_memory_result(memory_line)), memory_line);
  const std::string agreement_line = to_json_line(agreement(1e-7));
  EXPECT_EQ(to_json_line(parse_agreement_result(agreement_line)), agreement_line);
  const std::string accuracy_line = to_json_line(accuracy("TopK:0.01", 0.88));
  EXPECT_EQ(to_json_line(parse_accuracy_result(accuracy_line)), accuracy_line);
  for (const char* other : {"", "hello", "{}", R"({"engine": 3})"}) {
    EXPECT_THROW(parse_step_result(other), UsageError);
    EXPECT_THROW(parse_memory_result(other), UsageError);
    EXPECT_THROW(parse_agreement_result(other), UsageError);
    EXPECT_THROW(parse_accuracy_result(other), UsageError);
  }
}

}  // namespace
}  // namespace tutti::bench
