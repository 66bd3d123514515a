#include "all_reduce_report.hpp"

#include <gtest/gtest.h>

#include "support/bench_point.hpp"

namespace tutti::bench {
namespace {

using cli::BenchResult;

constexpr Bytes kSizes[] = {Bytes{1 << 10}, Bytes{4 << 20}, Bytes{64 << 20}};

// Everything just at its target.
std::vector<BenchResult> just_reached() {
  std::vector<BenchResult> points;
  for (const int ranks : {2, 4}) {
    for (const Bytes& size : kSizes) {
      points.push_back(point("limit", "direct", ranks, size, 0.86));
      points.push_back(point("tutti", "Auto", ranks, size, 1));
      points.push_back(point("tutti", "Ring", ranks, size, 0.92));
      points.push_back(point("tutti", "SharedSlices", ranks, size, 5));
      points.push_back(point("gloo", "default", ranks, size, 8.1));
      points.push_back(point("openmpi", "default", ranks, size,
                             ranks == 4          ? 1.01
                             : size == kSizes[0] ? 0.51
                             : size == kSizes[1] ? 2.1
                                                 : 4.1));
    }
  }
  return points;
}

std::vector<std::string> missed(const std::vector<BenchResult>& points) {
  std::vector<std::string> targets;
  for (const Judgement& judgement : judge_all_reduce_targets(points))
    if (!judgement.reached) targets.push_back(judgement.target);
  return targets;
}

TEST(AllReduceTargets, AreReachedWhereEverythingIsFastEnough) {
  EXPECT_EQ(judge_all_reduce_targets(just_reached()).size(), 7u);
  EXPECT_TRUE(missed(just_reached()).empty());
}

TEST(AllReduceTargets, AreMissedOneByOne) {
  struct Change {
    std::string engine, algorithm;
    int ranks;
    Bytes bytes;
    double seconds;
    std::string target;
  };
  const Change changes[] = {
      {"gloo", "default", 2, kSizes[2], 7.9, "64 MiB on 2 ranks: at least 8 times Gloo's speed"},
      {"openmpi", "default", 2, kSizes[2], 3.9, "64 MiB on 2 ranks: at least 4 times Open MPI's speed"},
      {"limit", "direct", 2, kSizes[2], 0.84, "64 MiB on 2 ranks: at least 0.85 of the limit's speed"},
      {"openmpi", "default", 2, kSizes[1], 1.9, "4 MiB on 2 ranks: at least 2 times Open MPI's speed"},
      {"openmpi", "default", 2, kSizes[0], 0.49, "1 KiB on 2 ranks: at most twice Open MPI's time, so half its speed"},
      {"openmpi", "default", 4, kSizes[1], 0.99, "every size on 4 ranks: at least Open MPI's speed"},
      {"tutti", "Ring", 4, kSizes[1], 0.9,
       "every size and number of ranks: at most 1.1 times the best named algorithm's time"},
  };
  for (const Change& change : changes) {
    std::vector<BenchResult> points = just_reached();
    for (BenchResult& result : points) {
      if (result.engine == change.engine && result.algorithm == change.algorithm && result.ranks == change.ranks &&
          result.bytes == change.bytes)
        result.timing.median = change.seconds;
    }
    EXPECT_EQ(missed(points), std::vector<std::string>{change.target});
  }
}

TEST(AllReduceTargets, AreNeverReachedByWhatWasNotMeasured) {
  EXPECT_EQ(missed({}).size(), 7u);
  for (const std::string engine : {"limit", "gloo", "openmpi", "tutti"}) {
    std::vector<BenchResult> points = just_reached();
    std::erase_if(points, [&](const BenchResult& result) { return result.engine == engine; });
    EXPECT_FALSE(missed(points).empty()) << engine;
  }
}

}  // namespace
}  // namespace tutti::bench
