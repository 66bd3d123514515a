#include "processes_report.hpp"

#include <string>

#include <fmt/format.h>

#include "cli/ping_pong.hpp"

namespace tutti::bench {
namespace {

using cli::BenchResult;

struct Column {
  std::string title;
  Wanted wanted;
};

// A speed that is told: that of one column over that of another.
struct Ratio {
  std::string title;
  Wanted ours, theirs;
};

void print_table(const Points<BenchResult>& points, int ranks, const std::vector<Column>& columns,
                 const std::vector<Ratio>& ratios) {
  std::vector<std::vector<std::string>> rows{{"bytes"}};
  for (const Column& column : columns) rows[0].push_back(column.title);
  std::vector<std::vector<std::string>> ratio_rows{{"bytes"}};
  for (const Ratio& ratio : ratios) ratio_rows[0].push_back(ratio.title);
  for (const Place& place : points.places()) {
    if (place.ranks != ranks) continue;
    rows.push_back({tutti::to_string(place.bytes)});
    for (const Column& column : columns) rows.back().push_back(time_cell(points.seconds(place, column.wanted)));
    ratio_rows.push_back({tutti::to_string(place.bytes)});
    for (const Ratio& ratio : ratios)
      ratio_rows.back().push_back(ratio_cell(points.speed(place, ratio.ours, ratio.theirs)));
  }
  print_rows(rows);
  fmt::print("tutti's speed over theirs\n");
  print_rows(ratio_rows);
  fmt::print("\n");
}

const std::string kPingPong{cli::kPingPong};
const Wanted kSharedAuto = by("tutti-shm", "Auto");
const Wanted kSocketsRing = by("tutti-c10d", "Ring");
const Wanted kGloo = by("gloo", "default");
const Wanted kOpenMpi = by("openmpi", "default");

}  // namespace

void print_process_tables(const std::vector<BenchResult>& all) {
  const Points points(all);
  for (const int ranks : rank_counts(points)) {
    fmt::print("{} processes, float32, sum: time of one all-reduce\n", ranks);
    print_table(points, ranks,
                {{"tutti-shm Auto", kSharedAuto},
                 {"tutti-shm Ring", by("tutti-shm", "Ring")},
                 {"tutti-c10d Auto", by("tutti-c10d", "Auto")},
                 {"tutti-c10d Ring", kSocketsRing},
                 {"gloo", kGloo},
                 {"openmpi", kOpenMpi}},
                {{"shm Auto / gloo", kSharedAuto, kGloo},
                 {"shm Auto / openmpi", kSharedAuto, kOpenMpi},
                 {"c10d Auto / gloo", by("tutti-c10d", "Auto"), kGloo},
                 {"c10d Ring / gloo", kSocketsRing, kGloo}});
    fmt::print("{} processes, in pairs, all at once: time of a message one way\n", ranks);
    const auto ping_pong = [](const char* engine) { return by(engine, kPingPong); };
    print_table(points, ranks,
                {{"tutti-shm", ping_pong("tutti-shm")},
                 {"tutti-c10d", ping_pong("tutti-c10d")},
                 {"gloo", ping_pong("gloo")},
                 {"openmpi", ping_pong("openmpi")}},
                {{"shm / gloo", ping_pong("tutti-shm"), ping_pong("gloo")},
                 {"shm / openmpi", ping_pong("tutti-shm"), ping_pong("openmpi")},
                 {"c10d / gloo", ping_pong("tutti-c10d"), ping_pong("gloo")}});
  }
}

std::vector<Judgement> judge_process_targets(const std::vector<BenchResult>& all) {
  const Points points(all);
  std::vector<Judgement> judgements;
  const auto add = [&](const Place& place, const char* what, const Wanted& ours, const Wanted& theirs, double least) {
    judgements.push_back(judge(
        fmt::format("{}: {}", to_string(place), what), std::vector{place},
        [&](const Place& here) { return points.speed(here, ours, theirs); }, least));
  };
  for (const int ranks : {2, 4}) {
    for (const std::uint64_t mebibytes : {1, 4, 64})
      add({ranks, Bytes{mebibytes << 20}}, "over sockets Ring has at least Gloo's speed", kSocketsRing, kGloo, 1);
  }
  for (const int ranks : {2, 4}) {
    const Place large{ranks, Bytes{64 << 20}};
    add(large, "with shared memory Auto has at least 5 times Gloo's speed", kSharedAuto, kGloo, 5);
    add(large, "with shared memory Auto has at least 2 times Open MPI's speed", kSharedAuto, kOpenMpi, 2);
    add({ranks, Bytes{1 << 10}},
        "with shared memory Auto takes at most 3 times Open MPI's time, so a third of its speed", kSharedAuto, kOpenMpi,
        1.0 / 3);
  }
  return judgements;
}

}  // namespace tutti::bench
