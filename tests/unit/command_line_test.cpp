#include "cli/command_line.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>

namespace tutti::cli {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Words = std::vector<std::string>;

TEST(CommandLine, OptionsWriteWhereTheyWereToldTo) {
  std::string bytes = "1";
  int rank = 0;
  double rate = 0;
  bool json = false;
  CommandLine line("", "app");
  const CommandOption bytes_option = line.option("-b,--bytes", bytes, "");
  const CommandOption rank_option = line.option("--rank", rank, 0, 9, "");
  line.option("--rate", rate, "");
  line.flag("--json", json, "");
  EXPECT_TRUE(line.parse(Words{"-b", "4", "--rate=0.5", "--json"}));
  EXPECT_EQ(bytes, "4");
  EXPECT_EQ(rate, 0.5);
  EXPECT_TRUE(json);
  EXPECT_TRUE(bytes_option.was_given());
  EXPECT_FALSE(rank_option.was_given());
}

TEST(CommandLine, AnUnknownOptionIsToldTheNearest) {
  std::string bytes;
  CommandLine line("", "app");
  line.option("--bytes", bytes, "");
  EXPECT_THAT([&] { line.parse(Words{"--byts=4"}); },
              ThrowsMessage<UsageError>("there is no option --byts; did you mean --bytes?"));
}

TEST(CommandLine, WhatIsNoOptionIsRefused) {
  CommandLine line("", "app");
  EXPECT_THAT([&] { line.parse(Words{"more"}); }, ThrowsMessage<UsageError>("unexpected argument 'more'"));
}

TEST(CommandLine, ANumberOutOfItsRangeIsRefusedByTheNameOfTheOption) {
  for (const char* text : {"-1", "10", "2.5", "x", ""}) {
    int rank = 0;
    CommandLine line("", "app");
    line.option("--rank", rank, 0, 9, "");
    EXPECT_THAT([&] { line.parse(Words{"--rank", text}); }, ThrowsMessage<UsageError>(HasSubstr("--rank"))) << text;
  }
}

TEST(CommandLine, OptionsThatExcludeEachOtherAreRefusedTogether) {
  bool json = false;
  bool table = false;
  CommandLine line("", "app");
  const CommandOption json_option = line.flag("--json", json, "");
  line.flag("--table", table, "").excludes(json_option);
  EXPECT_THAT([&] { line.parse(Words{"--json", "--table"}); }, ThrowsMessage<UsageError>(HasSubstr("--json")));
}

TEST(CommandLine, SecondsAreAFiniteNumber) {
  for (const char* text : {"nan", "inf", "-1", "3601", "x", ""}) {
    Effort effort;
    CommandLine line("", "app");
    line.effort(effort);
    EXPECT_THROW(line.parse(Words{"--seconds", text}), UsageError) << text;
  }
}

TEST(CommandLine, HelpShowsDefaultsThatAreNotEmptyAndNothingHidden) {
  std::string bytes = "64KiB";
  std::string interface;
  std::string secret;
  CommandLine line("What it does.", "app");
  line.option("--bytes", bytes, "how many");
  line.option("--interface", interface, "which");
  line.option("--secret", secret, "").hide();
  line.footer("The end.");
  testing::internal::CaptureStdout();
  EXPECT_FALSE(line.parse(Words{"--help"}));
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("What it does."));
  EXPECT_THAT(help, HasSubstr("--bytes TEXT=64KiB"));
  EXPECT_THAT(help, HasSubstr("--interface TEXT "));
  EXPECT_THAT(help, testing::Not(HasSubstr("--secret")));
  EXPECT_THAT(help, HasSubstr("The end."));
}

}  // namespace
}  // namespace tutti::cli
