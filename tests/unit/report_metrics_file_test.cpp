#include <tutti/report/metrics_file.hpp>

#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/scratch_folder.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using testing::content_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::ScratchFolder;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::usage_error;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> lines_of(const ScratchFolder& folder) {
  std::istringstream text(content_of(folder.path() / "metrics.jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::vector<std::int64_t> steps_of(const ScratchFolder& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& line : lines_of(folder)) steps.push_back(nlohmann::json::parse(line).at("step"));
  return steps;
}

// A step takes half a second.
event::StepEnded step(std::int64_t number, double loss = 1.5, std::int64_t rows = 8) {
  return {.step = number,
          .epoch = 1,
          .seconds = 0.5 * static_cast<double>(number),
          .loss = loss,
          .lr = 1.0 / static_cast<double>(number),
          .rows = rows,
          .metrics = {{"accuracy", loss / 2}}};
}

void take_steps(MetricsFile& file, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i <= last; ++i) file.on(step(i));
}

TEST(MetricsFile, TellsMeansOverStepsWeightedByRows) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 2});
  file.on(event::RunStarted{.steps = 4});
  file.on(step(1, 1, 1));
  EXPECT_THAT(lines_of(folder), SizeIs(0));
  file.on(step(2, 2, 3));
  EXPECT_THAT(
      lines_of(folder),
      ElementsAre(
          R"({"step":2,"epoch":1,"seconds":1.0,"loss":1.75,"lr":0.5,"rows_per_second":4.0,"train_accuracy":0.875})"));
  file.on(step(3, 4, 8));
  file.on(step(4, 4, 8));
  EXPECT_EQ(lines_of(folder).back(),
            R"({"step":4,"epoch":1,"seconds":2.0,"loss":4.0,"lr":0.25,"rows_per_second":16.0,"train_accuracy":2.0})");
}

TEST(MetricsFile, TellsAnEvaluationWithTheTrainingLossLastKnown) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 2});
  const event::EvaluationEnded evaluation{
      .step = 2, .epoch = 1, .seconds = 1.25, .split = "test", .loss = 0.5, .metrics = {{"accuracy", 0.75}}};
  file.on(event::RunStarted{.steps = 4});
  file.on(evaluation);
  take_steps(file, 1, 2);
  file.on(evaluation);
  EXPECT_THAT(lines_of(folder),
              ElementsAre(R"({"step":2,"epoch":1,"seconds":1.25,"loss":null,"test_loss":0.5,"test_accuracy":0.75})",
                          StartsWith(R"({"step":2,)"),
                          R"({"step":2,"epoch":1,"seconds":1.25,"loss":1.5,"test_loss":0.5,"test_accuracy":0.75})"));
}

TEST(MetricsFile, TellsWithAnEvaluationTheStepsThatNoLineToldYet) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 10});
  file.on(event::RunStarted{.steps = 20});
  file.on(step(1, 1));
  file.on(step(2, 2));
  file.on(event::EvaluationEnded{.step = 2, .epoch = 1, .seconds = 1, .split = "test", .loss = 0.5});
  file.on(event::EvaluationEnded{.step = 2, .epoch = 1, .seconds = 1, .split = "validation", .loss = 0.75});
  EXPECT_THAT(
      lines_of(folder),
      ElementsAre(
          R"({"step":2,"epoch":1,"seconds":1.0,"loss":1.5,"lr":0.5,"rows_per_second":16.0,"train_accuracy":0.75,"test_loss":0.5})",
          R"({"step":2,"epoch":1,"seconds":1.0,"loss":1.5,"validation_loss":0.75})"));
  take_steps(file, 3, 10);
  EXPECT_THAT(lines_of(folder).back(), HasSubstr(R"("step":10,"epoch":1,"seconds":5.0,"loss":1.5,)"));
}

TEST(MetricsFile, TellsWhatIsLeftAtCheckpointsAndAtTheEnd) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 10});
  file.on(event::RunStarted{.steps = 17});
  take_steps(file, 1, 15);
  file.on(event::CheckpointWritten{.step = 15});
  file.on(event::CheckpointWritten{.step = 15});
  take_steps(file, 16, 17);
  file.on(event::RunEnded{.step = 17});
  EXPECT_THAT(steps_of(folder), ElementsAre(10, 15, 17));
}

TEST(MetricsFile, TellsEachGenerationOnceAlsoWhereARunRepeatsSome) {
  const ScratchFolder folder;
  const auto tell = [](MetricsFile& file, std::int64_t generation) {
    file.on(event::MemberEvaluated{.generation = generation});
    file.on(event::GenerationEnded{.generation = generation,
                                   .seconds = 2.5,
                                   .best_score = generation == 1 ? kNaN : 0.75,
                                   .median_score = 0.5,
                                   .took_over = 2,
                                   .failed = 1});
  };
  {
    MetricsFile file(folder.path());
    file.on(event::RunStarted{.unit = "generation", .steps = 4});
    for (const std::int64_t generation : {1, 2, 3}) tell(file, generation);
    file.on(event::RunEnded{.step = 3});
  }
  EXPECT_THAT(lines_of(folder),
              ElementsAre(R"({"step":1,"seconds":2.5,"best_score":null,"median_score":0.5,"took_over":2,"failed":1})",
                          R"({"step":2,"seconds":2.5,"best_score":0.75,"median_score":0.5,"took_over":2,"failed":1})",
                          R"({"step":3,"seconds":2.5,"best_score":0.75,"median_score":0.5,"took_over":2,"failed":1})"));
  MetricsFile file(folder.path());
  file.on(event::RunStarted{.unit = "generation", .first_step = 2, .steps = 4});
  for (const std::int64_t generation : {3, 4}) tell(file, generation);
  EXPECT_THAT(steps_of(folder), ElementsAre(1, 2, 3, 4));
}

TEST(MetricsFile, WritesNullForNumbersThatAreNotFinite) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 1});
  file.on(event::RunStarted{});
  file.on(step(1, kNaN));
  file.on(step(2));
  file.on(event::EvaluationEnded{.step = 2, .split = "test", .loss = std::numeric_limits<double>::infinity()});
  EXPECT_THAT(lines_of(folder),
              ElementsAre(HasSubstr(R"("loss":null,)"), HasSubstr(R"("loss":1.5,)"), HasSubstr(R"("test_loss":null)")));
}

TEST(MetricsFile, FollowsMetricsThatComeAndGo) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 2});
  file.on(event::RunStarted{});
  file.on(event::StepEnded{.step = 1, .metrics = {{"a", 1}}});
  file.on(event::StepEnded{.step = 2, .metrics = {{"b", 2}, {"a", 3}}});
  EXPECT_THAT(lines_of(folder), ElementsAre(EndsWith(R"("train_a":2.0,"train_b":2.0})")));
}

TEST(MetricsFile, BeginsAnewWithANewRun) {
  const ScratchFolder folder;
  for (int run = 0; run < 2; ++run) {
    MetricsFile file(folder.path(), {.every_steps = 1});
    file.on(event::RunStarted{});
    file.on(event::EvaluationEnded{.step = 0, .split = "test"});
    take_steps(file, 1, 2);
  }
  EXPECT_THAT(steps_of(folder), ElementsAre(0, 1, 2));
}

TEST(MetricsFile, DropsStepsThatARunRepeats) {
  for (std::int64_t killed_after = 4; killed_after <= 9; ++killed_after) {
    const ScratchFolder folder;
    {
      MetricsFile file(folder.path(), {.every_steps = 1});
      file.on(event::RunStarted{.steps = 10});
      take_steps(file, 1, killed_after);
    }
    MetricsFile file(folder.path(), {.every_steps = 1});
    file.on(event::RunStarted{.first_step = 4, .first_seconds = 2, .steps = 10});
    EXPECT_THAT(steps_of(folder), ElementsAre(1, 2, 3, 4));
    take_steps(file, 5, 10);
    EXPECT_THAT(steps_of(folder), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    EXPECT_THAT(lines_of(folder)[4], HasSubstr(R"("rows_per_second":16.0)"));
    EXPECT_THAT(folder.entries(), ElementsAre("metrics.jsonl"));
  }
}

TEST(MetricsFile, DropsALineThatWasTornAnywhere) {
  const std::string first = R"({"step":1,"epoch":1,"loss":0.5})"
                            "\n";
  const std::string torn = R"({"step":2,"epoch":1,"loss":0.5,"lr":1})"
                           "\n";
  for (std::size_t length = 1; length <= torn.size(); ++length) {
    const ScratchFolder folder;
    std::ofstream(folder.path() / "metrics.jsonl") << first << torn.substr(0, length);
    MetricsFile file(folder.path(), {.every_steps = 1});
    file.on(event::RunStarted{.first_step = 2});
    EXPECT_EQ(content_of(folder.path() / "metrics.jsonl"), length == torn.size() ? first + torn : first);
    file.on(event::EvaluationEnded{.step = 2, .split = "test"});
    EXPECT_THAT(lines_of(folder).back(), HasSubstr(R"("loss":0.5,"test_loss")")) << "the last one known, from the file";
  }
}

TEST(MetricsFile, DropsWhatIsNoLineOfIts) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "metrics.jsonl") << "{\"step\":1}\n\n[1]\n{\"step\":\"2\"}\n{}\n3\n"
                                                 << std::string(5, '\0') << "\n{\"step\":2}\n";
  MetricsFile file(folder.path());
  file.on(event::RunStarted{.first_step = 2});
  EXPECT_EQ(content_of(folder.path() / "metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(MetricsFile, GoesOnWithoutAnOlderFile) {
  const ScratchFolder folder;
  MetricsFile file(folder.path() / "new" / "run", {.every_steps = 1});
  file.on(event::RunStarted{.first_step = 4});
  take_steps(file, 5, 5);
  EXPECT_THAT(content_of(folder.path() / "new" / "run" / "metrics.jsonl"), StartsWith(R"({"step":5,)"));
}

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(MetricsFile, SaysWhatCannotBeWritten) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() / "metrics.jsonl");
  MetricsFile file(folder.path());
  const std::string path = folder.path() / "metrics.jsonl";
  EXPECT_EQ(error_of([&] { file.on(event::RunStarted{}); }), "cannot write " + path + ": Is a directory");
  EXPECT_EQ(error_of([&] { file.on(event::RunStarted{.first_step = 1}); }),
            "cannot write " + path + ": Is a directory");

  std::ofstream(folder.path() / "file") << "x";
  MetricsFile nowhere(folder.path() / "file");
  EXPECT_THAT(error_of([&] { nowhere.on(event::RunStarted{}); }), EndsWith("/file: Not a directory"));
}

TEST(MetricsFile, SaysThatTheDiskIsFull) {
  const ScratchFolder folder;
  MetricsFile file(folder.path(), {.every_steps = 1});
  file.on(event::RunStarted{});
  // No file may grow beyond 100 bytes.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 100, .rlim_max = before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { take_steps(file, 1, 3); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write " + (folder.path() / "metrics.jsonl").string() + ": File too large");
}

TEST(MetricsFile, RefusesMisuse) {
  const ScratchFolder folder;
  EXPECT_EQ(usage_error([&] { MetricsFile(folder.path(), {.every_steps = 0}); }),
            "MetricsFile: every_steps must be at least 1, and is 0");
  MetricsFile file(folder.path(), {.every_steps = 1});
  EXPECT_THAT(usage_error([&] { take_steps(file, 1, 1); }),
              EndsWith("the run has to be told as started before its steps"));
}

}  // namespace
}  // namespace tutti
