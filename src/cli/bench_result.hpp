// One measured point, and the line of JSON that tells it: what `tutti bench` and the programs in benchmarks/ print.
//
//   {"engine":"tutti","algorithm":"Auto","picked":"SharedSlices","ranks":2,"bytes":4194304,"seconds":0.000301,...}
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/base/bytes.hpp>

#include "cli/measure.hpp"

namespace tutti::cli {

// Points at the same place can be compared.
struct Place {
  int ranks = 0;
  Bytes bytes;

  friend auto operator<=>(const Place&, const Place&) = default;
};

// "4 MiB on 2 ranks".
std::string to_string(const Place& place);

struct BenchResult {
  std::string engine;     // "tutti", "tutti-shm", "tutti-c10d", "gloo", "openmpi", "limit"
  std::string algorithm;  // "Auto", "Ring", "Tree:2"; "default" where the engine chooses; "ping-pong"
  std::string picked;     // what Auto picked; otherwise empty
  int ranks = 0;
  Bytes bytes;
  Timing timing;

  Place place() const { return {ranks, bytes}; }
  std::pair<std::string, std::string> column() const { return {engine, algorithm}; }

  // Bytes of one rank's array per second.
  double algorithm_bandwidth() const;
  // What each link of a ring would carry to be as fast; comparable between numbers of ranks. A ping-pong has one link.
  double bus_bandwidth() const;
};

// One line, without its end.
std::string to_json_line(const BenchResult& result);

// A UsageError for a line that tells no result.
BenchResult parse_bench_result(std::string_view line);

}  // namespace tutti::cli
