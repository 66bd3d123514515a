#include "cli/bench_report.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "cli/units.hpp"

namespace tutti::cli {

void BenchReport::begin(const BenchTable& table) {
  if (json_ || begun_) return;
  begun_ = true;
  table_ = table;
  fmt::print("{}\n{:>5} {:>9} ", table.headline, "ranks", "bytes");
  if (table.algorithm_width > 0) fmt::print(" {:<{}}", "algorithm", table.algorithm_width);
  fmt::print(" {:>9} {:>9} {:>9} ", "median", "p10", "p90");
  if (table.algorithm_width > 0) {
    fmt::print(" {:>14} {:>8}", "algorithm GB/s", "bus GB/s");
  } else {
    fmt::print(" {:>8}", "GB/s");
  }
  fmt::print(" {:>11}\n", "repetitions");
  std::fflush(stdout);
}

void BenchReport::add(const BenchResult& result) {
  if (json_) {
    fmt::print("{}\n", to_json_line(result));
  } else {
    fmt::print("{:>5} {:>9} ", result.ranks, to_string(result.bytes));
    if (table_.algorithm_width > 0) {
      const std::string name =
          result.picked.empty() ? result.algorithm : fmt::format("{} ({})", result.algorithm, result.picked);
      fmt::print(" {:<{}}", name, table_.algorithm_width);
    }
    fmt::print(" {:>9} {:>9} {:>9} ", format_seconds(result.timing.median), format_seconds(result.timing.p10),
               format_seconds(result.timing.p90));
    if (table_.algorithm_width > 0) {
      fmt::print(" {:>14} {:>8}", format_figure(result.algorithm_bandwidth() / 1e9),
                 format_figure(result.bus_bandwidth() / 1e9));
    } else {
      fmt::print(" {:>8}", format_figure(result.algorithm_bandwidth() / 1e9));
    }
    fmt::print(" {:>11}\n", result.timing.repetitions);
  }
  std::fflush(stdout);
}

}  // namespace tutti::cli
