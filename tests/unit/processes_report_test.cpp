#include "processes_report.hpp"

#include <gtest/gtest.h>

#include "support/bench_point.hpp"

namespace tutti::bench {
namespace {

using cli::BenchResult;

constexpr Bytes kSmall{1 << 10};
constexpr Bytes kOne{1 << 20};
constexpr Bytes kFour{4 << 20};
constexpr Bytes kLarge{64 << 20};

// Everything just at its target, and messages of no consequence.
std::vector<BenchResult> just_reached() {
  std::vector<BenchResult> points;
  for (const int ranks : {2, 4}) {
    for (const Bytes& size : {kSmall, kOne, kFour, kLarge}) {
      points.push_back(point("tutti-shm", "Auto", ranks, size, 1));
      points.push_back(point("tutti-shm", "Ring", ranks, size, 20));
      points.push_back(point("tutti-c10d", "Auto", ranks, size, 20));
      points.push_back(point("tutti-c10d", "Ring", ranks, size, size == kSmall ? 50 : 5));
      points.push_back(point("gloo", "default", ranks, size, 5.1));
      points.push_back(point("openmpi", "default", ranks, size, size == kSmall ? 0.34 : 2.1));
      for (const std::string engine : {"tutti-shm", "tutti-c10d", "gloo", "openmpi"})
        points.push_back(point(engine, "ping-pong", ranks, size, engine.starts_with("tutti") ? 100 : 0.01));
    }
  }
  return points;
}

std::vector<std::string> missed(const std::vector<BenchResult>& points) {
  std::vector<std::string> targets;
  for (const Judgement& judgement : judge_process_targets(points))
    if (!judgement.reached) targets.push_back(judgement.target);
  return targets;
}

TEST(ProcessTargets, AreReachedWhereEverythingIsFastEnough) {
  EXPECT_EQ(judge_process_targets(just_reached()).size(), 12u);
  EXPECT_EQ(missed(just_reached()), std::vector<std::string>{});
}

TEST(ProcessTargets, AreMissedOneByOne) {
  struct Change {
    std::string engine, algorithm;
    Bytes bytes;
    double seconds;
    std::string target;
  };
  const Change changes[] = {
      {"tutti-c10d", "Ring", kOne, 5.2, "1 MiB on {} ranks: over sockets Ring has at least Gloo's speed"},
      {"tutti-c10d", "Ring", kFour, 5.2, "4 MiB on {} ranks: over sockets Ring has at least Gloo's speed"},
      {"tutti-c10d", "Ring", kLarge, 5.2, "64 MiB on {} ranks: over sockets Ring has at least Gloo's speed"},
      {"tutti-shm", "Auto", kLarge, 1.03,
       "64 MiB on {} ranks: with shared memory Auto has at least 5 times Gloo's speed"},
      {"openmpi", "default", kLarge, 1.9,
       "64 MiB on {} ranks: with shared memory Auto has at least 2 times Open MPI's speed"},
      {"openmpi", "default", kSmall, 0.33,
       "1 KiB on {} ranks: with shared memory Auto takes at most 3 times Open MPI's time, so a third of its speed"},
  };
  for (const int ranks : {2, 4}) {
    for (const Change& change : changes) {
      std::vector<BenchResult> points = just_reached();
      for (BenchResult& result : points) {
        if (result.engine == change.engine && result.algorithm == change.algorithm && result.ranks == ranks &&
            result.bytes == change.bytes)
          result.timing.median = change.seconds;
      }
      std::string target = change.target;
      target.replace(target.find("{}"), 2, std::to_string(ranks));
      EXPECT_EQ(missed(points), std::vector<std::string>{target});
    }
  }
}

TEST(ProcessTargets, AreNeverReachedByWhatWasNotMeasured) {
  EXPECT_EQ(missed({}).size(), 12u);
  for (const std::string engine : {"tutti-shm", "tutti-c10d", "gloo", "openmpi"}) {
    std::vector<BenchResult> points = just_reached();
    std::erase_if(
        points, [&](const BenchResult& result) { return result.engine == engine && result.algorithm != "ping-pong"; });
    EXPECT_FALSE(missed(points).empty()) << engine;
  }
}

}  // namespace
}  // namespace tutti::bench
