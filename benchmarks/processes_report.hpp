// What the suite of processes makes of its measurements: tables of all-reduce and of ping-pong per number of ranks, and
// whether the targets are reached.
//
//   std::vector<BenchResult> points = combine_passes(results);
//   print_process_tables(points);
//   print_targets("tutti's speed over theirs", judge_process_targets(points));
#pragma once

#include <vector>

#include "cli/bench_result.hpp"
#include "report.hpp"

namespace tutti::bench {

// Engines have columns also where they have no results.
void print_process_tables(const std::vector<cli::BenchResult>& points);

std::vector<Judgement> judge_process_targets(const std::vector<cli::BenchResult>& points);

}  // namespace tutti::bench
