#include "cli/bench_result.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

namespace tutti::cli {
namespace {

const BenchResult kResult{.engine = "tutti",
                          .algorithm = "Auto",
                          .picked = "Ring",
                          .ranks = 4,
                          .bytes = Bytes{1000},
                          .timing = {.median = 0.5, .p10 = 0.25, .p90 = 1.0, .repetitions = 15, .batch = 3}};

TEST(BenchResult, BusBandwidthIsWhatALinkOfARingCarries) {
  EXPECT_DOUBLE_EQ(kResult.algorithm_bandwidth(), 2000);
  EXPECT_DOUBLE_EQ(kResult.bus_bandwidth(), 3000);
}

TEST(BenchResult, BusBandwidthOfAPingPongIsThatOfItsMessages) {
  BenchResult result = kResult;
  result.algorithm = "ping-pong";
  EXPECT_DOUBLE_EQ(result.bus_bandwidth(), 2000);
}

TEST(BenchResult, ALineHasTheKeysThatScriptsReadAndComesBack) {
  const std::string line = to_json_line(kResult);
  const nlohmann::json object = nlohmann::json::parse(line);
  EXPECT_EQ(object.at("engine"), "tutti");
  EXPECT_EQ(object.at("algorithm"), "Auto");
  EXPECT_EQ(object.at("picked"), "Ring");
  EXPECT_EQ(object.at("ranks"), 4);
  EXPECT_EQ(object.at("bytes"), 1000);
  EXPECT_EQ(object.at("seconds"), 0.5);
  EXPECT_EQ(object.at("algorithm_bandwidth"), 2000);
  EXPECT_EQ(object.at("bus_bandwidth"), 3000);
  EXPECT_EQ(object.at("repetitions"), 15);
  EXPECT_EQ(to_json_line(parse_bench_result(line)), line);
}

TEST(BenchResult, WhatTellsNoResultIsRefused) {
  for (const char* line : {"", "hello", "{}", R"({"engine": 3})"}) EXPECT_THROW(parse_bench_result(line), UsageError);
}

}  // namespace
}  // namespace tutti::cli
