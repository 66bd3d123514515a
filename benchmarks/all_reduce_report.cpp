#include "all_reduce_report.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "cli/units.hpp"

namespace tutti::bench {
namespace {

using cli::BenchResult;
using cli::format_figure;
using cli::format_seconds;

struct Place {
  int ranks = 0;
  Bytes bytes;

  friend auto operator<=>(const Place&, const Place&) = default;
};

std::string to_string(const Place& place) {
  return fmt::format("{} on {} ranks", tutti::to_string(place.bytes), place.ranks);
}

bool is_auto(const BenchResult& point) { return point.engine == "tutti" && point.algorithm == "Auto"; }
bool is_named(const BenchResult& point) { return point.engine == "tutti" && point.algorithm != "Auto"; }

// The measurements, to be asked for.
class Points {
 public:
  explicit Points(const std::vector<BenchResult>& points) : points_(points) {
    for (const BenchResult& point : points) places_.insert({point.ranks, point.bytes});
  }

  const std::set<Place>& places() const { return places_; }

  // The fastest of those that `wanted` says yes to.
  std::optional<double> seconds(const Place& place, const std::function<bool(const BenchResult&)>& wanted) const {
    std::optional<double> fastest;
    for (const BenchResult& point : points_) {
      if (point.ranks != place.ranks || point.bytes != place.bytes || !wanted(point)) continue;
      fastest = std::min(fastest.value_or(point.timing.median), point.timing.median);
    }
    return fastest;
  }

  std::optional<double> seconds(const Place& place, std::string_view engine) const {
    return seconds(place, [&](const BenchResult& point) { return point.engine == engine; });
  }

  // How many times as fast as these Auto is.
  std::optional<double> speed_over(const Place& place, std::string_view engine) const {
    return quotient(seconds(place, engine), seconds(place, is_auto));
  }
  std::optional<double> speed_over_best_named(const Place& place) const {
    return quotient(seconds(place, is_named), seconds(place, is_auto));
  }

 private:
  static std::optional<double> quotient(std::optional<double> a, std::optional<double> b) {
    return a && b ? std::optional(*a / *b) : std::nullopt;
  }

  const std::vector<BenchResult>& points_;
  std::set<Place> places_;
};

// Rows of cells, each column as wide as its widest cell, aligned to the right.
void print_rows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) fmt::print("{}{:>{}}", i == 0 ? "  " : "   ", row[i], widths[i]);
    fmt::print("\n");
  }
}

std::string cell(std::optional<double> value, const std::function<std::string(double)>& format) {
  return value ? format(*value) : "-";
}

std::string times(double value) { return format_figure(value) + "x"; }

struct Column {
  std::string engine;
  std::string algorithm;  // of tutti; otherwise empty

  std::string title() const { return algorithm.empty() ? engine : algorithm; }
};

// The engines in their order, tutti with a column per algorithm it has results for.
std::vector<Column> columns(const std::vector<BenchResult>& points, const std::vector<std::string>& engines) {
  std::vector<Column> result;
  for (const std::string& engine : engines) {
    const auto by_engine = [&](const BenchResult& point) { return point.engine == engine; };
    if (engine != "tutti" || std::ranges::none_of(points, by_engine)) {
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

std::string picked_at(const std::vector<BenchResult>& points, const Place& place) {
  for (const BenchResult& point : points)
    if (is_auto(point) && point.ranks == place.ranks && point.bytes == place.bytes) return point.picked;
  return "-";
}

using Speed = std::function<std::optional<double>(const Place&)>;

// A target at some places, of which the slowest counts: Auto must have at least a speed, relative to something.
Judgement judge(std::string target, const std::vector<Place>& places, const Speed& speed, double least) {
  std::optional<std::pair<double, Place>> slowest;
  for (const Place& place : places) {
    const std::optional<double> here = speed(place);
    if (!here) return {std::move(target), "", false};
    if (!slowest || *here < slowest->first) slowest = {*here, place};
  }
  if (!slowest) return {std::move(target), "", false};
  std::string measured = times(slowest->first);
  if (places.size() > 1) measured += fmt::format(" at worst, {}", to_string(slowest->second));
  return {std::move(target), std::move(measured), slowest->first >= least};
}

}  // namespace

std::vector<BenchResult> combine_passes(const std::vector<BenchResult>& results) {
  struct Samples {
    BenchResult first;
    std::vector<double> medians, p10s, p90s;
    std::uint64_t repetitions = 0;
  };
  std::map<std::pair<std::string, std::string>, std::size_t> order;
  std::map<std::tuple<Place, std::size_t>, Samples> places;
  for (const BenchResult& result : results) {
    const std::size_t column = order.try_emplace({result.engine, result.algorithm}, order.size()).first->second;
    Samples& samples =
        places.try_emplace({{result.ranks, result.bytes}, column}, Samples{result, {}, {}, {}, 0}).first->second;
    samples.medians.push_back(result.timing.median);
    samples.p10s.push_back(result.timing.p10);
    samples.p90s.push_back(result.timing.p90);
    samples.repetitions += result.timing.repetitions;
  }
  std::vector<BenchResult> points;
  for (const auto& [place, samples] : places) {
    points.push_back(samples.first);
    points.back().timing = {.median = cli::median(samples.medians),
                            .p10 = cli::median(samples.p10s),
                            .p90 = cli::median(samples.p90s),
                            .repetitions = samples.repetitions,
                            .batch = samples.first.timing.batch};
  }
  return points;
}

void print_tables(const std::vector<BenchResult>& all, const std::vector<std::string>& engines) {
  const Points points(all);
  const std::vector<Column> shown = columns(all, engines);
  std::set<int> rank_counts;
  for (const Place& place : points.places()) rank_counts.insert(place.ranks);
  for (const int ranks : rank_counts) {
    std::vector<std::vector<std::string>> time_rows{{"bytes"}};
    for (const Column& column : shown) time_rows[0].push_back(column.title());
    std::vector<std::vector<std::string>> ratio_rows{
        {"bytes", "Auto picked", "gloo", "openmpi", "limit", "best named"}};
    for (const Place& place : points.places()) {
      if (place.ranks != ranks) continue;
      time_rows.push_back({tutti::to_string(place.bytes)});
      for (const Column& column : shown) {
        const auto wanted = [&](const BenchResult& point) {
          return point.engine == column.engine && (column.algorithm.empty() || point.algorithm == column.algorithm);
        };
        time_rows.back().push_back(cell(points.seconds(place, wanted), format_seconds));
      }
      ratio_rows.push_back(
          {tutti::to_string(place.bytes), picked_at(all, place), cell(points.speed_over(place, "gloo"), times),
           cell(points.speed_over(place, "openmpi"), times), cell(points.speed_over(place, "limit"), times),
           cell(points.speed_over_best_named(place), times)});
    }
    fmt::print("{} ranks, float32, sum: time of one all-reduce (limit: no calls at all; then tutti's algorithms)\n",
               ranks);
    print_rows(time_rows);
    fmt::print("Auto's speed over theirs\n");
    print_rows(ratio_rows);
    fmt::print("\n");
  }
}

std::vector<Judgement> judge_targets(const std::vector<BenchResult>& all) {
  const Points points(all);
  const auto speed_over = [&](std::string_view engine) -> Speed {
    return [&points, engine](const Place& place) { return points.speed_over(place, engine); };
  };
  const Speed speed_over_best_named = [&](const Place& place) { return points.speed_over_best_named(place); };
  const std::vector<Place> large{{2, Bytes{64 << 20}}};
  const std::vector<Place> middle{{2, Bytes{4 << 20}}};
  const std::vector<Place> small{{2, Bytes{1 << 10}}};
  const std::vector<Place> everywhere(points.places().begin(), points.places().end());
  std::vector<Place> on_four;
  std::ranges::copy_if(everywhere, std::back_inserter(on_four), [](const Place& place) { return place.ranks == 4; });
  return {
      judge("64 MiB on 2 ranks: at least 8 times Gloo's speed", large, speed_over("gloo"), 8),
      judge("64 MiB on 2 ranks: at least 4 times Open MPI's speed", large, speed_over("openmpi"), 4),
      judge("64 MiB on 2 ranks: at least 0.85 of the limit's speed", large, speed_over("limit"), 0.85),
      judge("4 MiB on 2 ranks: at least 2 times Open MPI's speed", middle, speed_over("openmpi"), 2),
      judge("1 KiB on 2 ranks: at most twice Open MPI's time, so half its speed", small, speed_over("openmpi"), 0.5),
      judge("every size on 4 ranks: at least Open MPI's speed", on_four, speed_over("openmpi"), 1),
      judge("every size and number of ranks: at most 1.1 times the best named algorithm's time", everywhere,
            speed_over_best_named, 1 / 1.1),
  };
}

void print_targets(const std::vector<BenchResult>& points) {
  fmt::print("targets: Auto's speed over theirs\n");
  for (const Judgement& judgement : judge_targets(points)) {
    const bool measured = !judgement.measured.empty();
    const std::string_view verdict = !measured ? "-" : judgement.reached ? "reached" : "MISSED";
    fmt::print("  {:<7}  {:<82}  {}\n", verdict, judgement.target, measured ? judgement.measured : "not measured");
  }
}

}  // namespace tutti::bench
