// A suite of collectives or messages: engines that take turns at the same numbers of ranks and sizes.
//
//   int main(int argc, char** argv) {
//     return run_suite({.name = "all-reduce", .turns = {{"gloo", "", {"gloo_peer"}}, ...}, .report = ...}, argc, argv);
//   }
//
// What is told is the median over the passes of each pass's median.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/bench_result.hpp"

namespace tutti::bench {

// What one engine is asked at once.
struct EngineTurn {
  std::string engine;  // as its results say
  std::string what;    // where an engine has several turns, what this one measures
  // The program beside this one and its arguments; "<ranks>" among them becomes the number of ranks. It also gets
  // --ranks, --bytes and --seconds, and prints a line for each result.
  std::vector<std::string> words;
};

struct CollectiveSuite {
  std::string name;     // after ./bench
  std::string summary;  // for --help
  std::vector<EngineTurn> turns;
  // Prints tables and targets of the points, one for each engine, algorithm, number of ranks and size.
  std::function<void(const std::vector<cli::BenchResult>&)> report;
};

// What `main` returns: 0; 1 where an engine failed, 2 for misuse, with a sentence.
int run_suite(const CollectiveSuite& suite, int argc, char** argv);

}  // namespace tutti::bench
