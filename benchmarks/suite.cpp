#include "suite.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <tutti/base/error.hpp>

#include "cli/arguments.hpp"
#include "cli/process.hpp"
#include "report.hpp"

namespace tutti::bench {
namespace {

struct Request {
  std::vector<int> ranks;
  std::vector<Bytes> sizes;
  int passes = 3;
  double seconds = 0.3;
  int deadline_seconds = 300;
  bool json = false;
};

// False where help was asked for, and printed.
bool parse_request(const Suite& suite, const std::vector<std::string>& arguments, Request& request) {
  std::string ranks = "2,4";
  std::string sizes = "1KiB,64KiB,1MiB,4MiB,64MiB";
  CLI::App app(suite.summary, "./bench " + suite.name);
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", ranks, "numbers of ranks, with commas between");
  app.add_option("--bytes", sizes, "sizes of each rank's array, with commas between");
  app.add_option("--passes", request.passes, "how often each engine has its turn")->check(CLI::Range(1, 1000));
  cli::add_seconds_option(app, request.seconds);
  app.add_option("--deadline", request.deadline_seconds, "seconds after which an engine's turn is given up")
      ->check(CLI::Range(1, 86400));
  app.add_flag("--json", request.json, "print one JSON object a line, and no table");
  if (!cli::parse_arguments(app, arguments)) return false;
  request.ranks = cli::parse_ranks("--ranks", ranks);
  request.sizes = cli::parse_sizes("--bytes", sizes);
  for (const Bytes& size : request.sizes) {
    if (size.value % sizeof(float) != 0)
      throw UsageError(fmt::format("--bytes: {} bytes is no whole number of float32 elements", size.value));
  }
  return true;
}

std::vector<cli::BenchResult> run_turn(const Turn& turn, int ranks, const Request& request,
                                       const std::filesystem::path& scratch, cli::Signals& signals) {
  cli::Command command{.words = turn.words,
                       // Alike for all. Open MPI leaves files in its temporary folder when it is ended early.
                       .environment = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "TMPDIR=" + scratch.string()}};
  std::ranges::replace(command.words, std::string("<ranks>"), std::to_string(ranks));
  command.words[0] = cli::own_path().parent_path() / turn.words[0];
  if (!std::filesystem::exists(command.words[0]))
    throw Error(fmt::format("{} was not built; are all packages installed that setup/packages.txt lists for bench?",
                            command.words[0]));
  for (std::string word :
       {std::string("--ranks"), std::to_string(ranks), std::string("--bytes"), cli::join_sizes(request.sizes),
        std::string("--seconds"), fmt::format("{}", request.seconds)})
    command.words.push_back(std::move(word));

  const cli::Output output = cli::run(command, std::chrono::seconds(request.deadline_seconds), signals);
  std::vector<cli::BenchResult> results;
  std::set<Bytes> measured;
  for (std::size_t begin = 0; begin < output.text.size();) {
    const std::size_t end = std::min(output.text.find('\n', begin), output.text.size());
    results.push_back(cli::parse_bench_result(std::string_view(output.text).substr(begin, end - begin)));
    if (results.back().engine != turn.engine || results.back().ranks != ranks)
      throw Error(fmt::format("'{}' measured something else: {}", command.text(), to_json_line(results.back())));
    measured.insert(results.back().bytes);
    begin = end + 1;
  }
  for (const Bytes& size : request.sizes) {
    if (!measured.contains(size))
      throw Error(fmt::format("'{}' told nothing about {}", command.text(), to_string(size)));
  }
  return results;
}

// Others at work make every figure worse, and not all by the same factor.
void warn_where_busy() {
  double load = 0;
  const unsigned cores = std::thread::hardware_concurrency();
  if (::getloadavg(&load, 1) == 1 && load > 0.5 * cores)
    fmt::print(stderr, "bench: this machine is busy (load {:.1f} on {} cores), so expect noise\n", load, cores);
}

struct Measurements {
  std::vector<cli::BenchResult> results;
  std::vector<std::string> failures;
};

std::string describe(const Turn& turn) {
  return turn.what.empty() ? turn.engine : fmt::format("{}, {}", turn.engine, turn.what);
}

Measurements measure(const std::vector<Turn>& turns, const Request& request) {
  warn_where_busy();
  Measurements measurements;
  cli::Signals signals;
  cli::adopt_orphans();
  const cli::ScratchFolder scratch;
  std::set<std::pair<std::size_t, int>> failed;
  const std::size_t all = static_cast<std::size_t>(request.passes) * request.ranks.size() * turns.size();
  std::size_t count = 0;
  for (int pass = 0; pass < request.passes; ++pass) {
    for (const int ranks : request.ranks) {
      for (std::size_t i = 0; i < turns.size(); ++i) {
        // Each pass begins with another engine, so that none always follows the same one.
        const std::size_t which = (i + static_cast<std::size_t>(pass)) % turns.size();
        const Turn& turn = turns[which];
        ++count;
        if (failed.contains({which, ranks})) continue;
        fmt::print(stderr, "[{:>2}/{}] pass {} of {}, {} ranks: {}\n", count, all, pass + 1, request.passes, ranks,
                   describe(turn));
        try {
          std::ranges::move(run_turn(turn, ranks, request, scratch.path(), signals),
                            std::back_inserter(measurements.results));
        } catch (const cli::Interrupted&) {
          cli::end_orphans();
          throw;
        } catch (const std::exception& error) {
          measurements.failures.push_back(
              fmt::format("{} failed on {} ranks: {}", describe(turn), ranks, error.what()));
          fmt::print(stderr, "bench: {}\n", measurements.failures.back());
          failed.insert({which, ranks});
        }
        cli::end_orphans();
      }
    }
  }
  return measurements;
}

int run(const Suite& suite, const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(suite, arguments, request)) return 0;
  const Measurements measurements = measure(suite.turns, request);
  const std::vector<cli::BenchResult> points = combine_passes(measurements.results);
  if (request.json) {
    for (const cli::BenchResult& point : points) fmt::print("{}\n", to_json_line(point));
  } else {
    suite.report(points);
  }
  if (measurements.failures.empty()) return 0;
  std::fflush(stdout);
  fmt::print(stderr, "bench: not everything was measured:\n");
  for (const std::string& failure : measurements.failures)
    fmt::print(stderr, "  {}\n", failure.substr(0, failure.find('\n')));
  return 1;
}

}  // namespace

int run_suite(const Suite& suite, int argc, char** argv) {
  try {
    return run(suite, {argv + 1, argv + argc});
  } catch (const UsageError& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 1;
  }
}

}  // namespace tutti::bench
