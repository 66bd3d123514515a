#include "report.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "cli/measure.hpp"
#include "cli/units.hpp"

namespace tutti::bench {

using cli::BenchResult;

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

std::string to_string(const Place& place) {
  return fmt::format("{} on {} ranks", tutti::to_string(place.bytes), place.ranks);
}

Wanted by(std::string engine, std::string algorithm) {
  return [engine = std::move(engine), algorithm = std::move(algorithm)](const BenchResult& point) {
    return point.engine == engine && (algorithm.empty() || point.algorithm == algorithm);
  };
}

Points::Points(const std::vector<BenchResult>& points) : points_(points) {
  for (const BenchResult& point : points) places_.insert({point.ranks, point.bytes});
}

std::set<int> Points::rank_counts() const {
  std::set<int> counts;
  for (const Place& place : places_) counts.insert(place.ranks);
  return counts;
}

std::optional<double> Points::seconds(const Place& place, const Wanted& wanted) const {
  std::optional<double> fastest;
  for (const BenchResult& point : points_) {
    if (point.ranks != place.ranks || point.bytes != place.bytes || !wanted(point)) continue;
    fastest = std::min(fastest.value_or(point.timing.median), point.timing.median);
  }
  return fastest;
}

std::optional<double> Points::speed(const Place& place, const Wanted& ours, const Wanted& theirs) const {
  const std::optional<double> our_seconds = seconds(place, ours);
  const std::optional<double> their_seconds = seconds(place, theirs);
  return our_seconds && their_seconds ? std::optional(*their_seconds / *our_seconds) : std::nullopt;
}

std::string Points::picked(const Place& place, const Wanted& wanted) const {
  for (const BenchResult& point : points_)
    if (point.ranks == place.ranks && point.bytes == place.bytes && wanted(point)) return point.picked;
  return "-";
}

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

std::string time_cell(std::optional<double> seconds) { return seconds ? cli::format_seconds(*seconds) : "-"; }

std::string ratio_cell(std::optional<double> ratio) { return ratio ? cli::format_figure(*ratio) + "x" : "-"; }

Judgement judge(std::string target, const std::vector<Place>& places, const Speed& speed, double least) {
  std::optional<std::pair<double, Place>> slowest;
  for (const Place& place : places) {
    const std::optional<double> here = speed(place);
    if (!here) return {std::move(target), "", false};
    if (!slowest || *here < slowest->first) slowest = {*here, place};
  }
  if (!slowest) return {std::move(target), "", false};
  std::string measured = ratio_cell(slowest->first);
  if (places.size() > 1) measured += fmt::format(" at worst, {}", to_string(slowest->second));
  return {std::move(target), std::move(measured), slowest->first >= least};
}

void print_targets(const std::string& headline, const std::vector<Judgement>& judgements) {
  std::size_t width = 0;
  for (const Judgement& judgement : judgements) width = std::max(width, judgement.target.size());
  fmt::print("targets: {}\n", headline);
  for (const Judgement& judgement : judgements) {
    const bool measured = !judgement.measured.empty();
    const std::string_view verdict = !measured ? "-" : judgement.reached ? "reached" : "MISSED";
    fmt::print("  {:<7}  {:<{}}  {}\n", verdict, judgement.target, width,
               measured ? judgement.measured : "not measured");
  }
}

}  // namespace tutti::bench
