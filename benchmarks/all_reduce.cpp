// `./bench all-reduce`: tutti's all-reduce beside Gloo's, Open MPI's and the limit, in one run.
//
// Each engine is a program of its own in the folder of this one. They take turns, in several passes, so that what
// disturbs the machine disturbs all alike; what is told is the median over the passes of each pass's median.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <tutti/base/error.hpp>

#include "all_reduce_report.hpp"
#include "cli/arguments.hpp"
#include "cli/bench_result.hpp"
#include "cli/process.hpp"

namespace tutti::bench {
namespace {

struct Engine {
  std::string name;
  std::vector<std::string> words;  // the program beside this one, and what it is always asked
};

const std::vector<Engine>& engines() {
  static const std::vector<Engine> all{
      {"limit", {"limit_all_reduce"}},
      {"tutti", {"tutti", "bench", "all-reduce", "--json", "--algorithm", "all"}},
      {"gloo", {"gloo_all_reduce"}},
      {"openmpi", {"openmpi_all_reduce"}},
  };
  return all;
}

struct Request {
  std::vector<int> ranks;
  std::vector<Bytes> sizes;
  int passes = 3;
  double seconds = 0.3;
  int deadline_seconds = 300;
  bool json = false;
};

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  std::string ranks = "2,4";
  std::string sizes = "1KiB,64KiB,1MiB,4MiB,64MiB";
  CLI::App app("Times all-reduces of float32, sum: tutti beside Gloo, Open MPI and the limit.", "./bench all-reduce");
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

// One turn of one engine.
std::vector<cli::BenchResult> run_engine(const Engine& engine, int ranks, const Request& request,
                                         const std::filesystem::path& scratch, cli::Signals& signals) {
  cli::Command command{.words = engine.words,
                       // Alike for all. Open MPI leaves files in its temporary folder when it is ended early.
                       .environment = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "TMPDIR=" + scratch.string()}};
  command.words[0] = cli::own_path().parent_path() / engine.words[0];
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
    if (results.back().engine != engine.name || results.back().ranks != ranks)
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

Measurements measure(const Request& request) {
  warn_where_busy();
  Measurements measurements;
  cli::Signals signals;
  cli::adopt_orphans();
  const cli::ScratchFolder scratch;
  std::set<std::pair<std::string, int>> failed;
  const std::size_t turns = static_cast<std::size_t>(request.passes) * request.ranks.size() * engines().size();
  std::size_t turn = 0;
  for (int pass = 0; pass < request.passes; ++pass) {
    for (const int ranks : request.ranks) {
      for (std::size_t i = 0; i < engines().size(); ++i) {
        // Each pass begins with another engine, so that none always follows the same one.
        const Engine& engine = engines()[(i + static_cast<std::size_t>(pass)) % engines().size()];
        ++turn;
        if (failed.contains({engine.name, ranks})) continue;
        fmt::print(stderr, "[{:>2}/{}] pass {} of {}, {} ranks: {}\n", turn, turns, pass + 1, request.passes, ranks,
                   engine.name);
        try {
          std::ranges::move(run_engine(engine, ranks, request, scratch.path(), signals),
                            std::back_inserter(measurements.results));
        } catch (const cli::Interrupted&) {
          cli::end_orphans();
          throw;
        } catch (const std::exception& error) {
          measurements.failures.push_back(fmt::format("{} failed on {} ranks: {}", engine.name, ranks, error.what()));
          fmt::print(stderr, "bench: {}\n", measurements.failures.back());
          failed.insert({engine.name, ranks});
        }
        cli::end_orphans();
      }
    }
  }
  return measurements;
}

int run_suite(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return 0;
  const Measurements measurements = measure(request);
  const std::vector<cli::BenchResult> points = combine_passes(measurements.results);
  if (request.json) {
    for (const cli::BenchResult& point : points) fmt::print("{}\n", to_json_line(point));
  } else {
    std::vector<std::string> names;
    for (const Engine& engine : engines()) names.push_back(engine.name);
    print_tables(points, names);
    print_targets(points);
  }
  if (measurements.failures.empty()) return 0;
  std::fflush(stdout);
  fmt::print(stderr, "bench: not everything was measured:\n");
  for (const std::string& failure : measurements.failures)
    fmt::print(stderr, "  {}\n", failure.substr(0, failure.find('\n')));
  return 1;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  try {
    return tutti::bench::run_suite({argv + 1, argv + argc});
  } catch (const tutti::UsageError& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 1;
  }
}
