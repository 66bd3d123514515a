// Prints the results of a suite as they come: rows of a table, or one JSON object a line.
//
//   BenchReport report(request.json);
//   report.begin({.headline = "ping-pong, ranks are threads"});    // on rank 0, of each number of ranks
//   report.add(result);
#pragma once

#include <cstddef>
#include <string>

#include "cli/bench_result.hpp"

namespace tutti::cli {

struct BenchTable {
  std::string headline;
  std::size_t algorithm_width = 0;  // where 0 there is but one algorithm, and no column for it
};

class BenchReport {
 public:
  explicit BenchReport(bool json) : json_(json) {}

  // The first of them counts: a table has one head.
  void begin(const BenchTable& table);
  void add(const BenchResult& result);

 private:
  bool json_;
  bool begun_ = false;
  BenchTable table_;
};

}  // namespace tutti::cli
