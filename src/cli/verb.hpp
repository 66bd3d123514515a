// What `tutti` can be asked to do: one file per verb, and main.cpp to find it.
//
//   Verb{"bench", "measures ...", run_bench};
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::cli {

using Arguments = std::span<const std::string>;

struct Verb {
  std::string_view name;
  std::string_view summary;
  // Gets what follows the verb on the command line. Misuse is a UsageError; any other exception means that it failed.
  void (*run)(Arguments arguments);
  // Whether it runs on ranks, which are processes where a launcher started several: then it needs libtorch.
  bool on_ranks = false;
  bool needs_torch = false;  // always
};

void run_bench(Arguments arguments);
void run_bench_all_reduce(Arguments arguments);
void run_bench_ping_pong(Arguments arguments);
void run_check(Arguments arguments);
void run_eval(Arguments arguments);
void run_export(Arguments arguments);
void run_fetch(Arguments arguments);
void run_launch(Arguments arguments);
void run_predict(Arguments arguments);
void run_train(Arguments arguments);

// Thrown by a verb that has said all there is to say, and ends with an exit code of its own.
struct Ended {
  int code = 0;
};

// The names of all verbs of `tutti`.
std::vector<std::string> verb_names();

// The one of `verbs` called `name`; otherwise a UsageError with the nearest. `kind` is what they are: "verb", "suite".
const Verb& find_verb(std::span<const Verb> verbs, std::string_view name, std::string_view kind);

}  // namespace tutti::cli
