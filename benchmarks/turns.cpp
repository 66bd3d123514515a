#include "turns.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "cli/process.hpp"

namespace tutti::bench {
namespace {

// Others at work make every figure worse, and not all by the same factor.
void warn_where_busy() {
  double load = 0;
  const unsigned cores = std::thread::hardware_concurrency();
  if (::getloadavg(&load, 1) == 1 && load > 0.5 * cores)
    fmt::print(stderr, "bench: this machine is busy (load {:.1f} on {} cores), so expect noise\n", load, cores);
}

void run_turn(const Turn& turn, const RunOptions& options, const std::filesystem::path& scratch,
              cli::Signals& signals) {
  cli::Command command{.words = turn.words,
                       // Alike for all. Open MPI leaves files in its temporary folder when it is ended early.
                       .environment = {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "TMPDIR=" + scratch.string()}};
  command.environment.insert(command.environment.end(), turn.environment.begin(), turn.environment.end());
  command.words[0] = beside(turn.words[0]);
  if (!std::filesystem::exists(command.words[0]))
    throw Error(fmt::format("{} was not built; are all packages installed that setup/packages.txt lists for bench?",
                            command.words[0]));
  const auto began = std::chrono::steady_clock::now();
  const cli::Output output = cli::run(command, std::chrono::seconds(options.deadline_seconds), signals);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
  try {
    turn.take(output.text);
    if (turn.took) turn.took({.seconds = elapsed.count(), .peak_memory = output.peak_memory});
  } catch (const std::exception& error) {
    throw Error(fmt::format("'{}': {}", command.text(), error.what()));
  }
}

}  // namespace

void add_run_options(cli::CommandLine& line, RunOptions& options) {
  line.option("--passes", options.passes, 1, 1000, "how often each engine has its turn");
  if (options.seconds > 0) line.seconds(options.seconds);
  line.option("--deadline", options.deadline_seconds, 1, 86400, "seconds after which an engine's turn is given up");
  line.flag("--json", options.json, "print one JSON object a line, and no table");
}

std::vector<std::string> parse_names(std::string_view option, std::string_view text,
                                     std::span<const std::string_view> known) {
  std::vector<std::string> names = cli::parse_list(option, text);
  for (const std::string& name : names) cli::parse_choice(option, name, known);
  return names;
}

std::vector<std::string> take_turns(const std::vector<std::vector<Turn>>& groups, const RunOptions& options) {
  warn_where_busy();
  std::vector<std::string> failures;
  cli::Signals signals;
  cli::adopt_orphans();
  const cli::ScratchFolder scratch;
  std::set<const Turn*> failed;
  std::size_t all = 0;
  for (const std::vector<Turn>& group : groups)
    for (const Turn& turn : group) all += turn.once ? 1 : static_cast<std::size_t>(options.passes);
  std::size_t count = 0;
  for (int pass = 0; pass < options.passes; ++pass) {
    for (const std::vector<Turn>& group : groups) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        const Turn& turn = group[(i + static_cast<std::size_t>(pass)) % group.size()];
        if (turn.once && pass > 0) continue;
        ++count;
        if (failed.contains(&turn)) continue;
        fmt::print(stderr, "[{:>2}/{}] pass {} of {}: {}\n", count, all, pass + 1, options.passes, turn.name);
        try {
          run_turn(turn, options, scratch.path(), signals);
        } catch (const cli::Interrupted&) {
          cli::end_orphans();
          throw;
        } catch (const std::exception& error) {
          failures.push_back(fmt::format("{} failed: {}", turn.name, error.what()));
          fmt::print(stderr, "bench: {}\n", failures.back());
          failed.insert(&turn);
        }
        cli::end_orphans();
      }
    }
  }
  return failures;
}

std::vector<std::string> blas_environment() {
  cli::Signals signals;
  const cli::Output output =
      cli::run({.words = {beside("data_parallel_engines"), "--kernels"}, .environment = {"TUTTI_QUIET=1"}},
               std::chrono::minutes(1), signals);
  const std::string kernels = output.text.substr(0, output.text.find('\n'));
  if (kernels.empty()) return {};
  return {"OPENBLAS_CORETYPE=" + kernels};
}

std::filesystem::path beside(std::string_view name) { return cli::own_path().parent_path() / name; }

std::vector<std::string> train_words(const TrainCommand& command) {
  std::vector<std::string> words{"tutti"};
  if (command.processes > 1)
    words = {"tutti", "launch", "--processes", std::to_string(command.processes), "--no-prefix", "--", beside("tutti")};
  words.insert(words.end(), {"train", command.run_file, "--json", "--output", command.output});
  for (const std::string& set : command.sets) words.insert(words.end(), {"--set", set});
  return words;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw Error(fmt::format("cannot read {}", file.string()));
  return {std::istreambuf_iterator(stream), {}};
}

nlohmann::json parse_object(std::string_view text) {
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (!parsed.is_object()) throw Error(fmt::format("expected JSON objects, found '{}'", text));
  return parsed;
}

int run_suite(const std::function<std::vector<std::string>()>& f) {
  try {
    const std::vector<std::string> failures = f();
    if (failures.empty()) return 0;
    std::fflush(stdout);
    fmt::print(stderr, "bench: not everything was measured:\n");
    for (const std::string& failure : failures) fmt::print(stderr, "  {}\n", failure.substr(0, failure.find('\n')));
    return 1;
  } catch (const UsageError& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 1;
  }
}

}  // namespace tutti::bench
