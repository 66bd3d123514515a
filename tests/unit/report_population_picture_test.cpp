#include <tutti/report/population_picture.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using testing::content_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ScratchFolder;

std::string line(std::int64_t generation, std::int64_t member, double score) {
  return fmt::format(
      R"({{"generation":{},"member":{},"score":{},"parent":null,"hyper_parameters":{{"optimizer.lr":0.013}}}})"
      "\n",
      generation, member, score);
}

void append(const ScratchFolder& folder, std::string_view text) {
  std::ofstream(folder / "population.jsonl", std::ios::binary | std::ios::app) << text;
}

const PopulationScore kAccuracy{.name = "validation accuracy"};

event::GenerationEnded generation(std::int64_t number) { return {.generation = number}; }

std::size_t dots(const ScratchFolder& folder) {
  std::string svg = content_of(folder / "population.svg");
  svg.erase(0, svg.find(R"(<g class="dots">)"));
  std::size_t count = 0;
  for (std::size_t at = 0; (at = svg.find("<title>generation", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(PopulationPicture, IsDrawnAnewAfterEachGenerationAndAtTheEnd) {
  const ScratchFolder folder;
  PopulationPicture picture(folder.path(), kAccuracy);
  picture.on(event::RunStarted{.unit = "generation"});
  append(folder, line(1, 0, 0.5) + line(1, 1, 0.75));
  picture.on(event::MemberEvaluated{});
  EXPECT_FALSE(std::filesystem::exists(folder / "population.svg"));
  picture.on(generation(1));
  EXPECT_EQ(dots(folder), 2u);
  EXPECT_THAT(content_of(folder / "population.svg"), HasSubstr("Best validation accuracy: 0.75, member 1"));
  append(folder, line(2, 0, 0.875) + line(2, 1, 0.5));
  picture.on(generation(2));
  EXPECT_EQ(dots(folder), 4u);
  append(folder, line(3, 1, 0.5));
  picture.on(event::RunEnded{.step = 2});
  EXPECT_EQ(dots(folder), 5u);
}

TEST(PopulationPicture, KnowsWhichScoresAreBetter) {
  const ScratchFolder folder;
  PopulationPicture picture(folder.path(), {.name = "validation loss", .higher_is_better = false});
  append(folder, line(1, 0, 0.5) + line(1, 1, 0.75));
  picture.on(generation(1));
  EXPECT_THAT(content_of(folder / "population.svg"), HasSubstr("Best validation loss: 0.5, member 0"));
}

TEST(PopulationPicture, WaitsForTheRestOfALineThatIsNotWhole) {
  const std::string whole = line(1, 1, 0.75);
  for (std::size_t length = 0; length < whole.size(); length += 9) {
    const ScratchFolder folder;
    PopulationPicture picture(folder.path(), kAccuracy);
    append(folder, line(1, 0, 0.5) + whole.substr(0, length));
    picture.on(generation(1));
    EXPECT_EQ(dots(folder), 1u);
    append(folder, whole.substr(length));
    picture.on(generation(1));
    EXPECT_EQ(dots(folder), 2u) << length;
  }
}

TEST(PopulationPicture, ForgetsWhatWasReadWhereARunStarts) {
  const ScratchFolder folder;
  PopulationPicture picture(folder.path(), kAccuracy);
  append(folder, line(1, 0, 0.5) + line(2, 0, 0.5));
  picture.on(generation(2));
  picture.on(event::RunStarted{.first_step = 1});
  folder.write("population.jsonl", line(1, 0, 0.5));
  picture.on(generation(1));
  EXPECT_EQ(dots(folder), 1u);
}

// A run that goes on from fewer records than there are does so after it was told to have started.
TEST(PopulationPicture, ReadsALogFromItsBeginningThatWasWrittenAnew) {
  for (const std::string& rest :
       {line(2, 0, 0.25), line(2, 0, 0.25) + line(2, 1, 0.5) + line(3, 0, 0.25), std::string()}) {
    const ScratchFolder folder;
    PopulationPicture picture(folder.path(), kAccuracy);
    picture.on(event::RunStarted{.first_step = 1});
    append(folder, line(1, 0, 0.5) + line(1, 1, 0.75) + line(2, 0, 0.875));
    picture.on(generation(1));
    EXPECT_EQ(dots(folder), 3u);
    folder.write("population.jsonl", line(1, 0, 0.5) + line(1, 1, 0.75) + rest);
    picture.on(event::RunEnded{.step = 1});
    EXPECT_EQ(dots(folder), 2u + static_cast<std::size_t>(std::ranges::count(rest, '\n')));
    EXPECT_THAT(content_of(folder / "population.svg"), HasSubstr("Best validation accuracy: 0.75, member 1"));
  }
}

TEST(PopulationPicture, IsDrawnOfWhatAnEarlierRunHasLeft) {
  const ScratchFolder folder;
  PopulationPicture picture(folder.path(), kAccuracy);
  append(folder, line(1, 0, 0.5));
  picture.on(event::RunStarted{.first_step = 1});
  picture.on(event::RunEnded{.step = 1});
  EXPECT_EQ(dots(folder), 1u);
}

TEST(PopulationPicture, IsNoneOfARunWithoutGenerations) {
  const ScratchFolder folder;
  PopulationPicture picture(folder.path(), kAccuracy);
  picture.on(event::RunStarted{});
  picture.on(event::StepEnded{});
  picture.on(event::RunEnded{});
  EXPECT_THAT(folder.entries(), IsEmpty());
}

TEST(PopulationPicture, IsThereAlsoWithoutAFileToDrawItFrom) {
  const ScratchFolder folder;
  PopulationPicture picture(folder.path(), kAccuracy);
  picture.on(generation(1));
  EXPECT_THAT(content_of(folder / "population.svg"), HasSubstr("No member has been evaluated yet."));
}

TEST(PopulationPicture, SaysWhatCannotBeWritten) {
  const ScratchFolder folder;
  PopulationPicture picture(folder / "nowhere");
  try {
    picture.on(generation(1));
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("nowhere/population.svg: No such file or directory"));
  }
}

}  // namespace
}  // namespace tutti
