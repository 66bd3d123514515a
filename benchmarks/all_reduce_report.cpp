#include "all_reduce_report.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>

#include <fmt/format.h>

namespace tutti::bench {
namespace {

using cli::BenchResult;

using Speed = std::function<std::optional<double>(const Place&)>;

const Wanted kAuto = by("tutti", "Auto");
const Wanted kNamed{
    [](const std::string& engine, const std::string& algorithm) { return engine == "tutti" && algorithm != "Auto"; }};

// What Auto picked; "-" where it was not measured.
std::string picked(const Points<BenchResult>& points, const Place& place) {
  const BenchResult* found = points.fastest(place, kAuto);
  return found == nullptr ? "-" : found->picked;
}

struct Column {
  std::string engine;
  std::string algorithm;  // of tutti; otherwise empty

  std::string title() const { return algorithm.empty() ? engine : algorithm; }
};

// The engines in their order, tutti with a column per algorithm it has results for.
std::vector<Column> columns(const std::vector<BenchResult>& points, const std::vector<std::string>& engines) {
  std::vector<Column> result;
  for (const std::string& engine : engines) {
    if (engine != "tutti" || std::ranges::none_of(points, by(engine))) {
      result.push_back({engine, ""});
      continue;
    }
    for (const BenchResult& point : points) {
      const auto same = [&](const Column& column) { return column.algorithm == point.algorithm; };
      if (point.engine == "tutti" && std::ranges::none_of(result, same)) result.push_back({engine, point.algorithm});
    }
  }
  return result;
}

}  // namespace

void print_all_reduce_tables(const std::vector<BenchResult>& all, const std::vector<std::string>& engines) {
  const Points points(all);
  const std::vector<Column> shown = columns(all, engines);
  for (const int ranks : rank_counts(points)) {
    std::vector<std::vector<std::string>> time_rows{{"bytes"}};
    for (const Column& column : shown) time_rows[0].push_back(column.title());
    std::vector<std::vector<std::string>> ratio_rows{
        {"bytes", "Auto picked", "gloo", "openmpi", "limit", "best named"}};
    for (const Place& place : points.places()) {
      if (place.ranks != ranks) continue;
      time_rows.push_back({tutti::to_string(place.bytes)});
      for (const Column& column : shown)
        time_rows.back().push_back(time_cell(points.seconds(place, by(column.engine, column.algorithm))));
      ratio_rows.push_back({tutti::to_string(place.bytes), picked(points, place)});
      for (const Wanted& theirs : {by("gloo"), by("openmpi"), by("limit"), kNamed})
        ratio_rows.back().push_back(ratio_cell(points.speed(place, kAuto, theirs)));
    }
    fmt::print("{} ranks, float32, sum: time of one all-reduce (limit: no calls at all; then tutti's algorithms)\n",
               ranks);
    print_rows(time_rows);
    fmt::print("Auto's speed over theirs\n");
    print_rows(ratio_rows);
    fmt::print("\n");
  }
}

std::vector<Judgement> judge_all_reduce_targets(const std::vector<BenchResult>& all) {
  const Points points(all);
  const auto speed_over = [&](Wanted theirs) -> Speed {
    return [&points, theirs](const Place& place) { return points.speed(place, kAuto, theirs); };
  };
  const std::vector<Place> large{{2, Bytes{64 << 20}}};
  const std::vector<Place> middle{{2, Bytes{4 << 20}}};
  const std::vector<Place> small{{2, Bytes{1 << 10}}};
  const std::vector<Place> everywhere(points.places().begin(), points.places().end());
  std::vector<Place> on_four;
  std::ranges::copy_if(everywhere, std::back_inserter(on_four), [](const Place& place) { return place.ranks == 4; });
  return {
      judge("64 MiB on 2 ranks: at least 8 times Gloo's speed", large, speed_over(by("gloo")), 8),
      judge("64 MiB on 2 ranks: at least 4 times Open MPI's speed", large, speed_over(by("openmpi")), 4),
      judge("64 MiB on 2 ranks: at least 0.85 of the limit's speed", large, speed_over(by("limit")), 0.85),
      judge("4 MiB on 2 ranks: at least 2 times Open MPI's speed", middle, speed_over(by("openmpi")), 2),
      judge("1 KiB on 2 ranks: at most twice Open MPI's time, so half its speed", small, speed_over(by("openmpi")),
            0.5),
      judge("every size on 4 ranks: at least Open MPI's speed", on_four, speed_over(by("openmpi")), 1),
      judge("every size and number of ranks: at most 1.1 times the best named algorithm's time", everywhere,
            speed_over(kNamed), 1 / 1.1),
  };
}

}  // namespace tutti::bench
