#include "report.hpp"

#include <string_view>

#include "cli/units.hpp"

namespace tutti::bench {

std::optional<double> speed_ratio(std::optional<double> our_seconds, std::optional<double> their_seconds) {
  return our_seconds && their_seconds ? std::optional(*their_seconds / *our_seconds) : std::nullopt;
}

Wanted by(std::string engine, std::string way) {
  return {
      [engine = std::move(engine), way = std::move(way)](const std::string& its_engine, const std::string& its_way) {
        return its_engine == engine && (way.empty() || its_way == way);
      }};
}

std::set<int> rank_counts(const Points<cli::BenchResult>& points) {
  std::set<int> counts;
  for (const Place& place : points.places()) counts.insert(place.ranks);
  return counts;
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

Judgement judge(std::string target, std::optional<double> speed, double least) {
  return {std::move(target), speed ? ratio_cell(speed) : "", speed && *speed >= least};
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
