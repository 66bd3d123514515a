// What the all-reduce suite makes of its measurements: a table per number of ranks, and whether the targets are
// reached.
//
//   std::vector<BenchResult> points = combine_passes(results);
//   print_all_reduce_tables(points, {"limit", "tutti", "gloo", "openmpi"});
//   print_targets("Auto's speed over theirs", judge_all_reduce_targets(points));
#pragma once

#include <string>
#include <vector>

#include "cli/bench_result.hpp"
#include "report.hpp"

namespace tutti::bench {

// `engines` have columns also where they have no results.
void print_all_reduce_tables(const std::vector<cli::BenchResult>& points, const std::vector<std::string>& engines);

std::vector<Judgement> judge_all_reduce_targets(const std::vector<cli::BenchResult>& points);

}  // namespace tutti::bench
