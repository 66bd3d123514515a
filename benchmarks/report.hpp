// What every suite makes of its measurements: one figure per point, tables, and targets that are reached or missed.
//
//   std::vector<BenchResult> all = combine_passes(results);
//   const Points points(all);
//   points.speed({2, Bytes{1024}}, by("tutti", "Auto"), by("gloo"));          // how many times as fast
//   judge("1 KiB on 2 ranks: at least Gloo's speed", {{2, Bytes{1024}}}, speed, 1);
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <tutti/base/bytes.hpp>

#include "cli/bench_result.hpp"

namespace tutti::bench {

// For each engine, algorithm, number of ranks and size the median over the passes, ordered by ranks, then size, then as
// they first came.
std::vector<cli::BenchResult> combine_passes(const std::vector<cli::BenchResult>& results);

struct Place {
  int ranks = 0;
  Bytes bytes;

  friend auto operator<=>(const Place&, const Place&) = default;
};

std::string to_string(const Place& place);

using Wanted = std::function<bool(const cli::BenchResult&)>;

// Results of an engine, and where given of one algorithm.
Wanted by(std::string engine, std::string algorithm = "");

// The measurements, to be asked for. They must outlive it.
class Points {
 public:
  explicit Points(const std::vector<cli::BenchResult>& points);

  const std::set<Place>& places() const { return places_; }
  std::set<int> rank_counts() const;

  // The fastest of those wanted.
  std::optional<double> seconds(const Place& place, const Wanted& wanted) const;
  // How many times as fast as theirs ours is.
  std::optional<double> speed(const Place& place, const Wanted& ours, const Wanted& theirs) const;
  // What Auto picked; "-" where it was not measured.
  std::string picked(const Place& place, const Wanted& wanted) const;

 private:
  const std::vector<cli::BenchResult>& points_;
  std::set<Place> places_;
};

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

using Speed = std::function<std::optional<double>(const Place&)>;

// A target at some places, of which the slowest counts: there must be at least a speed, relative to something.
Judgement judge(std::string target, const std::vector<Place>& places, const Speed& speed, double least);

void print_targets(const std::string& headline, const std::vector<Judgement>& judgements);

}  // namespace tutti::bench
