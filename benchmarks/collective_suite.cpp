#include "collective_suite.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "report.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

struct Request {
  std::vector<int> ranks;
  std::vector<Bytes> sizes;
  RunOptions run;
};

// False where help was asked for, and printed.
bool parse_request(const CollectiveSuite& suite, const std::vector<std::string>& arguments, Request& request) {
  std::string ranks = "2,4";
  std::string sizes = "1KiB,64KiB,1MiB,4MiB,64MiB";
  cli::CommandLine line(suite.summary, "./bench " + suite.name);
  line.option("--ranks", ranks, "numbers of ranks, with commas between");
  line.option("--bytes", sizes, "sizes of each rank's array, with commas between");
  add_run_options(line, request.run);
  if (!line.parse(arguments)) return false;
  request.ranks = cli::parse_ranks("--ranks", ranks);
  request.sizes = cli::parse_sizes("--bytes", sizes);
  for (const Bytes& size : request.sizes) {
    if (size.value % sizeof(float) != 0)
      throw UsageError(fmt::format("--bytes: {} bytes is no whole number of float32 elements", size.value));
  }
  return true;
}

std::vector<cli::BenchResult> parse_results(const std::string& engine, int ranks, const std::vector<Bytes>& sizes,
                                            const std::string& text) {
  std::vector<cli::BenchResult> results;
  std::set<Bytes> measured;
  for (const std::string_view line : lines_of(text)) {
    results.push_back(cli::parse_bench_result(line));
    if (results.back().engine != engine || results.back().ranks != ranks)
      throw Error(fmt::format("it measured something else: {}", line));
    measured.insert(results.back().bytes);
  }
  for (const Bytes& size : sizes) {
    if (!measured.contains(size)) throw Error(fmt::format("it told nothing about {}", to_string(size)));
  }
  return results;
}

Turn turn_on(const EngineTurn& engine, int ranks, const Request& request, std::vector<cli::BenchResult>& results) {
  std::vector<std::string> words = engine.words;
  std::ranges::replace(words, std::string("<ranks>"), std::to_string(ranks));
  for (const std::string& word :
       {std::string("--ranks"), std::to_string(ranks), std::string("--bytes"), cli::join_sizes(request.sizes),
        std::string("--seconds"), fmt::format("{}", request.run.seconds)})
    words.push_back(word);
  return {.name = fmt::format("{}{}{} on {} ranks", engine.engine, engine.what.empty() ? "" : ", ", engine.what, ranks),
          .words = std::move(words),
          .take = [&results, &request, name = engine.engine, ranks](const std::string& text) {
            for (cli::BenchResult& result : parse_results(name, ranks, request.sizes, text))
              results.push_back(std::move(result));
          }};
}

std::vector<std::string> run(const CollectiveSuite& suite, const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(suite, arguments, request)) return {};
  std::vector<cli::BenchResult> results;
  std::vector<std::vector<Turn>> groups;
  for (const int ranks : request.ranks) {
    groups.emplace_back();
    for (const EngineTurn& engine : suite.turns) groups.back().push_back(turn_on(engine, ranks, request, results));
  }
  std::vector<std::string> failures = take_turns(groups, request.run);
  const std::vector<cli::BenchResult> points = combine_passes(results);
  if (request.run.json) {
    for (const cli::BenchResult& point : points) fmt::print("{}\n", to_json_line(point));
  } else {
    suite.report(points);
  }
  return failures;
}

}  // namespace

int run_suite(const CollectiveSuite& suite, int argc, char** argv) {
  return run_suite([&] { return run(suite, {argv + 1, argv + argc}); });
}

}  // namespace tutti::bench
