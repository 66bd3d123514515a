// Programs that take turns at the same work, in one run.
//
//   std::vector<std::string> failures = take_turns({{tutti_on_2, gloo_on_2}, {tutti_on_4, gloo_on_4}}, options);
//
// Those of a group are compared with each other. They follow each other closely, in several passes, so that what
// disturbs the machine disturbs all alike; each pass begins with another one, so that none always follows the same.
//
// Around it, what suites share: their common options, what they start and read, and how `main` ends.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/bytes.hpp>

namespace tutti::cli {
class CommandLine;
}

namespace tutti::bench {

// What a program used, from its start to its end.
struct Spent {
  double seconds = 0;
  Bytes peak_memory;
};

struct Turn {
  std::string name;                // "gloo on 2 ranks"
  std::vector<std::string> words;  // the program, a file beside this one, and its arguments
  // "NAME=value", on top of ours and of one BLAS and OpenMP thread.
  std::vector<std::string> environment = {};
  // Takes what it printed; throws where that is not what was asked for.
  std::function<void(const std::string& text)> take;
  // Takes what it used, where that was what was asked for.
  std::function<void(const Spent& spent)> took = {};
  bool once = false;  // in the first pass only
};

struct RunOptions {
  int passes = 3;
  double seconds = 0.3;  // for each point of a pass; 0 where that is as long as it takes, and nobody can choose
  int deadline_seconds = 300;
  bool json = false;
};

// --passes, --seconds, --deadline and --json, with what is in `options` as defaults.
void add_run_options(cli::CommandLine& line, RunOptions& options);

// The names of a list such as "tutti,gloo"; a UsageError where one of them is not known.
std::vector<std::string> parse_names(std::string_view option, std::string_view text,
                                     std::span<const std::string_view> known);

// A turn that fails is told at once, has no more in later passes, and is a sentence in what is returned.
std::vector<std::string> take_turns(const std::vector<std::vector<Turn>>& groups, const RunOptions& options);

// For engines that compute with BLAS, the same for all: the kernels that tutti chooses for OpenBLAS where it chooses
// badly itself. The program data_parallel_engines tells.
std::vector<std::string> blas_environment();

// A program of the build, beside this one.
std::filesystem::path beside(std::string_view name);

// `tutti train`, which tells what happens as JSON.
struct TrainCommand {
  std::filesystem::path run_file;
  std::filesystem::path output;
  std::vector<std::string> sets;  // "path=value"
  int processes = 1;              // that `tutti launch` starts, where there are several
};

// For Turn::words.
std::vector<std::string> train_words(const TrainCommand& command);

// The lines of a text, without their ends.
std::vector<std::string_view> lines_of(std::string_view text);
std::string text_of(const std::filesystem::path& file);
// An object of JSON, in which there may be comments.
nlohmann::json parse_object(std::string_view text);

// What `main` returns: 0; 1 where there were failures or `f` throws, 2 for misuse, with a sentence. `f` returns what
// take_turns did.
int run_suite(const std::function<std::vector<std::string>()>& f);

}  // namespace tutti::bench
