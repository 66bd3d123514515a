// What the data-parallel suite makes of its measurements: tables, and whether the targets are reached.
//
//   measured.steps = fastest_of_each_engine(combine_passes(results));
//   print_data_parallel_tables(measured);
//   print_targets("tutti's speed over theirs", judge_data_parallel_targets(measured));
#pragma once

#include <optional>
#include <vector>

#include "data_parallel_result.hpp"
#include "report.hpp"

namespace tutti::bench {

struct DataParallelMeasurements {
  std::vector<StepResult> steps;
  std::vector<MemoryResult> memory;
  std::optional<AgreementResult> agreement;
  std::vector<AccuracyResult> accuracy;  // with each compression, and without
};

// Of an engine that was measured with several numbers of threads, at each place the better.
std::vector<StepResult> fastest_of_each_engine(const std::vector<StepResult>& points);

void print_data_parallel_tables(const DataParallelMeasurements& measured);

std::vector<Judgement> judge_data_parallel_targets(const DataParallelMeasurements& measured);

}  // namespace tutti::bench
