// Measured points for tests of what the benchmarks make of them.
//
//   points.push_back(point("gloo", "default", 2, Bytes{1024}, 0.5));
#pragma once

#include <string>
#include <utility>

#include "cli/bench_result.hpp"

namespace tutti::bench {

inline cli::BenchResult point(std::string engine, std::string algorithm, int ranks, Bytes bytes, double seconds) {
  return {.engine = std::move(engine),
          .algorithm = std::move(algorithm),
          .picked = "",
          .ranks = ranks,
          .bytes = bytes,
          .timing = {.median = seconds, .p10 = seconds, .p90 = seconds, .repetitions = 15, .batch = 1}};
}

}  // namespace tutti::bench
