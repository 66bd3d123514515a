// What every suite makes of its measurements: one figure per point, tables, and targets that are reached or missed.
//
//   std::vector<BenchResult> all = combine_passes(results);
//   const Points points(all);
//   points.speed({2, Bytes{1024}}, by("tutti", "Auto"), by("gloo"));          // how many times as fast
//   judge("1 KiB on 2 ranks: at least Gloo's speed", {{2, Bytes{1024}}}, speed, 1);
//
// A point is what an engine measured once: it has a `timing`, a place(), where it can be compared with others, and a
// column(), who measured it and how: two names, of which the first is the engine's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench_result.hpp"
#include "cli/measure.hpp"

namespace tutti::bench {

using cli::Place;

// How many times as fast as theirs ours is; nothing where one of them was not measured.
std::optional<double> speed_ratio(std::optional<double> our_seconds, std::optional<double> their_seconds);

// For each place and column the median over the passes, ordered by place, then as they first came.
template <typename Point>
std::vector<Point> combine_passes(const std::vector<Point>& results) {
  struct Samples {
    Point first;
    std::vector<double> medians, p10s, p90s;
    std::uint64_t repetitions = 0;
  };
  std::map<std::pair<std::string, std::string>, std::size_t> order;
  std::map<std::pair<decltype(std::declval<Point>().place()), std::size_t>, Samples> places;
  for (const Point& result : results) {
    const std::size_t column = order.try_emplace(result.column(), order.size()).first->second;
    Samples& samples = places.try_emplace({result.place(), column}, Samples{result, {}, {}, {}, 0}).first->second;
    samples.medians.push_back(result.timing.median);
    samples.p10s.push_back(result.timing.p10);
    samples.p90s.push_back(result.timing.p90);
    samples.repetitions += result.timing.repetitions;
  }
  std::vector<Point> points;
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

// Points of some column: of an engine and, where given, of one of its ways.
struct Wanted {
  std::function<bool(const std::string& engine, const std::string& way)> fits;

  template <typename Point>
  bool operator()(const Point& point) const {
    const auto [engine, way] = point.column();
    return fits(engine, way);
  }
};

Wanted by(std::string engine, std::string way = "");

// The measurements, to be asked for. They must outlive it.
template <typename Point>
class Points {
 public:
  using PlaceOf = decltype(std::declval<Point>().place());

  explicit Points(const std::vector<Point>& points) : points_(points) {
    for (const Point& point : points) places_.insert(point.place());
  }

  const std::set<PlaceOf>& places() const { return places_; }

  // The fastest of those wanted; null where none was measured.
  const Point* fastest(const PlaceOf& place, const Wanted& wanted) const {
    const Point* found = nullptr;
    for (const Point& point : points_) {
      if (point.place() != place || !wanted(point)) continue;
      if (found == nullptr || point.timing.median < found->timing.median) found = &point;
    }
    return found;
  }
  std::optional<double> seconds(const PlaceOf& place, const Wanted& wanted) const {
    const Point* found = fastest(place, wanted);
    return found == nullptr ? std::nullopt : std::optional(found->timing.median);
  }
  // How many times as fast as theirs ours is.
  std::optional<double> speed(const PlaceOf& place, const Wanted& ours, const Wanted& theirs) const {
    return speed_ratio(seconds(place, ours), seconds(place, theirs));
  }

 private:
  const std::vector<Point>& points_;
  std::set<PlaceOf> places_;
};

// Of collectives.
std::set<int> rank_counts(const Points<cli::BenchResult>& points);

// Rows of cells, each column as wide as its widest cell, aligned to the right.
void print_rows(const std::vector<std::vector<std::string>>& rows);
// "7.71 ms" and "1.80x"; "-" for what was not measured.
std::string time_cell(std::optional<double> seconds);
std::string ratio_cell(std::optional<double> ratio);

struct Judgement {
  std::string target;
  std::string measured;  // empty where a figure it needs was not measured
  bool reached = false;
};

// A target: there must be at least a speed, relative to something.
Judgement judge(std::string target, std::optional<double> speed, double least);

// The same at some places, of which the slowest counts.
template <typename At>
Judgement judge(std::string target, const std::vector<At>& places,
                const std::type_identity_t<std::function<std::optional<double>(const At&)>>& speed, double least) {
  std::optional<std::pair<double, At>> slowest;
  for (const At& place : places) {
    const std::optional<double> here = speed(place);
    if (!here) return {std::move(target), "", false};
    if (!slowest || *here < slowest->first) slowest = {*here, place};
  }
  if (!slowest) return {std::move(target), "", false};
  std::string measured = ratio_cell(slowest->first);
  if (places.size() > 1) measured += fmt::format(" at worst, {}", to_string(slowest->second));
  return {std::move(target), std::move(measured), slowest->first >= least};
}

void print_targets(const std::string& headline, const std::vector<Judgement>& judgements);

}  // namespace tutti::bench
