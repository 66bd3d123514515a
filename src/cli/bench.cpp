// `tutti bench <suite>`: measures one kind of call.
#include <fmt/format.h>

#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

constexpr Verb kSuites[] = {
    {"all-reduce", "the time of an all-reduce, by ranks, size and algorithm", run_bench_all_reduce},
    {"ping-pong", "the time of a message between two ranks, by size", run_bench_ping_pong},
};

}  // namespace

void run_bench(Arguments arguments) {
  if (!arguments.empty() && arguments[0] != "--help" && arguments[0] != "-h")
    return find_verb(kSuites, arguments[0], "suite").run(arguments.subspan(1));
  fmt::print("usage: tutti bench <suite> [options]\n\nsuites:\n");
  for (const Verb& suite : kSuites) fmt::print("  {:<12} {}\n", suite.name, suite.summary);
  fmt::print("\n'tutti bench <suite> --help' tells a suite's options.\n");
}

}  // namespace tutti::cli
