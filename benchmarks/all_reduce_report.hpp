// What the all-reduce suite makes of its measurements: one figure per point, a table per number of ranks, and whether
// the targets are reached.
//
//   std::vector<BenchResult> points = combine_passes(results);
//   print_tables(points);
//   print_targets(points);
#pragma once

#include <string>
#include <vector>

#include "cli/bench_result.hpp"

namespace tutti::bench {

// For each engine, algorithm, number of ranks and size the median over the passes, ordered by ranks, then size, then as
// they first came.
std::vector<cli::BenchResult> combine_passes(const std::vector<cli::BenchResult>& results);

// `engines` have columns also where they have no results.
void print_tables(const std::vector<cli::BenchResult>& points, const std::vector<std::string>& engines);

struct Judgement {
  std::string target;
  std::string measured;  // empty where a figure it needs was not measured
  bool reached = false;
};

std::vector<Judgement> judge_targets(const std::vector<cli::BenchResult>& points);

void print_targets(const std::vector<cli::BenchResult>& points);

}  // namespace tutti::bench
