// Checkpoints: which stay, which is read, and the folder that a run writes to.
#include <tutti/train/checkpoint.hpp>

#include <algorithm>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/train/best.hpp>
#include <tutti/train/output_folder.hpp>

#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti::checkpoint_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Checkpoint checkpoint_at(std::int64_t step, std::int64_t best_step = 0) {
  Checkpoint checkpoint{.state = {.step = step, .seconds = 1.5, .blas = "Zen", .run = "{}"}, .arrays = {}};
  if (best_step > 0) checkpoint.state.best = {.of = "test loss", .value = 0.5, .step = best_step, .mark = 0.4};
  const std::vector<float> values(1000, static_cast<float>(step));
  checkpoint.arrays.add("hidden.weight", {1000}, values);
  return checkpoint;
}

std::vector<std::int64_t> steps_in(const CheckpointFolder& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointFile& file : folder.files()) steps.push_back(file.step);
  return steps;
}

// The last ones and the best stay, whatever there is; nothing else does.
TEST(CheckpointPolicy, KeepsTheLastOnesAndTheBest) {
  for (std::int64_t count = 0; count < 8; ++count) {
    std::vector<std::int64_t> steps;
    for (std::int64_t i = 0; i < count; ++i) steps.push_back(10 * (i + 1));
    for (std::int64_t keep_last = 1; keep_last < 5; ++keep_last) {
      for (const bool keep_best : {false, true}) {
        for (std::int64_t best = -1; best <= 80; best += 27) {
          const std::int64_t best_step = best < 0 ? -1 : 10 * (best / 10 + 1);
          const std::vector<std::int64_t> removed =
              checkpoints_to_remove(steps, {.keep_last = keep_last, .keep_best = keep_best}, best_step);
          for (std::size_t i = 0; i < steps.size(); ++i) {
            const bool is_last = i + static_cast<std::size_t>(keep_last) >= steps.size();
            const bool is_kept = is_last || (keep_best && steps[i] == best_step);
            EXPECT_EQ(std::ranges::find(removed, steps[i]) == removed.end(), is_kept);
          }
        }
      }
    }
  }
}

TEST(CheckpointFolder, ReadsWhatItWrote) {
  const testing::ScratchFolder scratch;
  CheckpointFolder folder(scratch / "checkpoints", {});
  const std::filesystem::path path = folder.write(checkpoint_at(7, 7));
  EXPECT_EQ(path.filename(), "step-000000007.safetensors");
  const Checkpoint read = read_checkpoint(path);
  EXPECT_EQ(read.state.step, 7);
  EXPECT_EQ(read.state.seconds, 1.5);
  EXPECT_EQ(read.state.best, (BestState{.of = "test loss", .value = 0.5, .step = 7, .mark = 0.4}));
  EXPECT_EQ(read.state.blas, "Zen");
  EXPECT_EQ(read.arrays, checkpoint_at(7).arrays);
  EXPECT_EQ(std::filesystem::read_symlink(scratch / "checkpoints/best.safetensors"), path.filename());
}

TEST(CheckpointFolder, ReadsWhatClientsKeepOneByOneAndFindsDamageInIt) {
  const testing::ScratchFolder scratch;
  CheckpointFolder folder(scratch / "checkpoints", {});
  Checkpoint checkpoint = checkpoint_at(7);
  ParameterStore kept;
  ParameterSet one;
  one.add({.name = "state/w", .shape = {1000}});
  for (const std::int64_t client : {0, 3}) kept.put(client, one);
  checkpoint.of_clients = kept.on_demand("client/");
  const std::filesystem::path path = folder.write(checkpoint);
  EXPECT_EQ(read_checkpoint(path).arrays, checkpoint_at(7).arrays);
  std::vector<std::string> names;
  read_clients(path, [&](const ParameterLayout& layout, std::span<const std::byte> bytes) {
    names.push_back(layout.name);
    EXPECT_EQ(bytes.size(), 4000U);
  });
  EXPECT_THAT(names, ElementsAre("client/0/state/w", "client/3/state/w"));
  // Whoever does not take it says so himself.
  EXPECT_EQ(testing::usage_error(
                [&] { read_clients(path, [](const ParameterLayout&, auto) { throw UsageError("not mine"); }); }),
            "not mine");
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-2000, std::ios::end);
  file.put('x');
  file.close();
  EXPECT_THROW((void)read_checkpoint(path), Error);
}

TEST(CheckpointFolder, RemovesWhatThePolicyDoesNotKeep) {
  const testing::ScratchFolder scratch;
  CheckpointFolder folder(scratch / "checkpoints", {.keep_last = 2});
  for (const std::int64_t step : {1, 2, 3, 4, 5})
    (void)folder.write(checkpoint_at(step, std::min<std::int64_t>(step, 2)));
  EXPECT_THAT(steps_in(folder), ElementsAre(2, 4, 5));
}

TEST(CheckpointFolder, PutsAsideWhatIsOfAnotherPast) {
  const testing::ScratchFolder scratch;
  CheckpointFolder folder(scratch / "checkpoints", {.keep_last = 9});
  for (const std::int64_t step : {10, 20, 30}) (void)folder.write(checkpoint_at(step));
  (void)folder.write(checkpoint_at(15));
  EXPECT_THAT(steps_in(folder), ElementsAre(10, 15));
  EXPECT_TRUE(std::filesystem::exists(scratch / "checkpoints/step-000000030.safetensors.aside"));
}

TEST(CheckpointFolder, TellsOfDamageAndReadsTheOneBefore) {
  const testing::ScratchFolder scratch;
  CheckpointFolder folder(scratch / "checkpoints", {.keep_last = 9});
  std::vector<std::filesystem::path> paths;
  for (const std::int64_t step : {1, 2, 3}) paths.push_back(folder.write(checkpoint_at(step)));
  std::string flipped = testing::content_of(paths[2]);
  flipped[flipped.size() - 100] ^= 4;
  testing::overwrite(paths[2], flipped);
  testing::overwrite(paths[1], "");
  std::vector<std::string> problems;
  const std::optional<Checkpoint> last = folder.read_last(problems);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->state.step, 1);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_THAT(problems[0], HasSubstr("step-000000003.safetensors: it is damaged"));
  EXPECT_THAT(problems[1], HasSubstr("step-000000002.safetensors"));
}

TEST(CheckpointFolder, FindsNothingWhereThereIsNothing) {
  const testing::ScratchFolder scratch;
  std::vector<std::string> problems;
  EXPECT_FALSE(CheckpointFolder(scratch / "none", {}).read_last(problems).has_value());
  EXPECT_THAT(problems, IsEmpty());
}

TEST(Weights, AreThoseOfACheckpointOrOfAnyFile) {
  const testing::ScratchFolder scratch;
  Checkpoint checkpoint = checkpoint_at(3);
  checkpoint.arrays.add({.name = "optimizer/step/hidden.weight", .shape = {}, .type = DataType::int64});
  CheckpointFolder folder(scratch / "checkpoints", {});
  EXPECT_THAT(weights_in(folder.write(checkpoint)).names(), ElementsAre("hidden.weight"));
}

TEST(OutputFolder, IsOneRunsAtATime) {
  const testing::ScratchFolder scratch;
  const std::filesystem::path place = scratch / "runs/first";
  {
    const OutputFolder folder(place);
    EXPECT_EQ(testing::usage_error([&] { const OutputFolder other(place); }),
              "another run is writing to " + place.string() + "; --output takes another folder");
  }
  const OutputFolder again(place);
}

TEST(OutputFolder, PutsARunAsideUnderTheNextFreeName) {
  const testing::ScratchFolder scratch;
  for (const char* name : {"run", "other/"}) {
    const std::filesystem::path place = scratch / name;
    OutputFolder folder(place);
    EXPECT_EQ(folder.begin_anew(), std::nullopt);
    for (int number = 1; number < 4; ++number) {
      (void)CheckpointFolder(folder.checkpoints(), {}).write(checkpoint_at(number));
      const auto aside = folder.begin_anew();
      ASSERT_TRUE(aside.has_value());
      EXPECT_TRUE(aside->string().ends_with("." + std::to_string(number))) << *aside;
      EXPECT_THAT(steps_in(CheckpointFolder(*aside / "checkpoints", {})), ElementsAre(number));
      EXPECT_TRUE(CheckpointFolder(folder.checkpoints(), {}).files().empty());
    }
  }
}

// What somebody is using stays where it is; all else goes, whatever it is.
TEST(OutputFolder, LeavesWhatIsInUse) {
  const testing::ScratchFolder scratch;
  OutputFolder folder(scratch / "run");
  (void)CheckpointFolder(folder.checkpoints(), {}).write(checkpoint_at(1));
  std::filesystem::create_directories(scratch / "run/store/deep");
  std::filesystem::create_directories(scratch / "run/notes");
  (void)scratch.write("run/store/deep/used", "x");
  (void)scratch.write("run/notes/mine", "x");
  (void)scratch.write("run/run.json", "{}");
  EXPECT_EQ(folder.begin_anew(scratch / "run/store/deep"), scratch / "run.1");
  EXPECT_TRUE(std::filesystem::exists(scratch / "run/store/deep/used"));
  for (const char* name : {"notes/mine", "run.json", "checkpoints"}) {
    EXPECT_TRUE(std::filesystem::exists(scratch / "run.1" / name)) << name;
    EXPECT_FALSE(std::filesystem::exists(scratch / "run" / name)) << name;
  }
  // And still one run's at a time.
  EXPECT_NE(testing::usage_error([&] { const OutputFolder other(scratch / "run"); }), "");
}

// Somebody who works in a folder, or below it, has other things there.
TEST(OutputFolder, StaysWhereTheRunIsStartedIn) {
  const testing::ScratchFolder scratch;
  std::filesystem::create_directories(scratch / "run/below");
  OutputFolder folder(scratch / "run");
  (void)CheckpointFolder(folder.checkpoints(), {}).write(checkpoint_at(1));
  const std::filesystem::path before = std::filesystem::current_path();
  for (const char* place : {"run", "run/below"}) {
    std::filesystem::current_path(scratch / place);
    const std::string refused = testing::usage_error([&] { (void)folder.begin_anew(); });
    std::filesystem::current_path(before);
    EXPECT_THAT(refused, ::testing::EndsWith("cannot be put aside; --output takes another folder"));
  }
  EXPECT_FALSE(std::filesystem::exists(scratch / "run.1"));
  EXPECT_EQ(folder.begin_anew(), scratch / "run.1");
}

// A link to a folder, on another disk perhaps, stays one.
TEST(OutputFolder, IsALinkToAFolder) {
  const testing::ScratchFolder scratch;
  std::filesystem::create_directories(scratch / "disk/run");
  std::filesystem::create_directory_symlink(scratch / "disk/run", scratch / "link");
  OutputFolder folder(scratch / "link");
  (void)CheckpointFolder(folder.checkpoints(), {}).write(checkpoint_at(1));
  EXPECT_EQ(folder.begin_anew(), scratch / "disk/run.1");
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "link"));
  EXPECT_THAT(steps_in(CheckpointFolder(scratch / "disk/run.1/checkpoints", {})), ElementsAre(1));
}

TEST(OutputFolder, IsNoFile) {
  const testing::ScratchFolder scratch;
  const std::filesystem::path file = scratch.write("file", "x");
  EXPECT_EQ(testing::usage_error([&] { const OutputFolder folder(file); }),
            "output: " + file.string() + " is a file, expected a folder");
}

// --- which evaluation was the best ---

TEST(BestSoFar, IsTheHighestOrTheLowest) {
  BestSoFar highest({.higher_is_better = true});
  EXPECT_TRUE(highest.take(0.5, 1));
  EXPECT_FALSE(highest.take(0.5, 2));
  EXPECT_FALSE(highest.take(0.4, 3));
  EXPECT_TRUE(highest.take(0.6, 4));
  EXPECT_EQ(highest.state().step, 4);
  BestSoFar lowest({.higher_is_better = false});
  EXPECT_TRUE(lowest.take(0.5, 1));
  EXPECT_TRUE(lowest.take(0.4, 2));
  EXPECT_FALSE(lowest.take(0.6, 3));
}

TEST(BestSoFar, CountsEvaluationsWithoutProgress) {
  for (const bool higher : {true, false}) {
    const double sign = higher ? 1 : -1;
    BestSoFar best({.higher_is_better = higher, .min_change = 0.1});
    (void)best.take(sign * 0.5, 1);
    EXPECT_TRUE(best.take(sign * 0.55, 2));  // better, and no progress
    EXPECT_EQ(best.evaluations_since_progress(), 1);
    (void)best.take(sign * 0.59, 3);
    EXPECT_EQ(best.evaluations_since_progress(), 2);
    (void)best.take(sign * 0.61, 4);
    EXPECT_EQ(best.evaluations_since_progress(), 0);
  }
}

TEST(BestSoFar, IsNeverANumberThatIsNone) {
  BestSoFar best({.higher_is_better = false});
  EXPECT_FALSE(best.take(std::numeric_limits<double>::quiet_NaN(), 1));
  EXPECT_FALSE(best.take(-std::numeric_limits<double>::infinity(), 2));
  EXPECT_EQ(best.evaluations_since_progress(), 2);
  EXPECT_TRUE(best.take(3, 3));
}

}  // namespace
}  // namespace tutti::checkpoint_test
