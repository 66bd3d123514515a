// The program `tutti`: finds the verb, runs it, and turns what went wrong into one sentence and an exit code:
// 0 done, 1 the run failed, 2 misuse; `launch` has those of what it started.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>
#include <tutti/base/version.hpp>
#include <tutti/transport/environment.hpp>

#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

constexpr Verb kVerbs[] = {
    {"bench", "times what ranks do together, by size, ranks and algorithm", run_bench, true},
    {"check", "reads a run file, and tells what would run", run_check, false, true},
    {"eval", "evaluates what a run has learnt", run_eval, false, true},
    {"export", "writes what a run has learnt as safetensors or npz", run_export, false, true},
    {"fetch", "fetches data to learn from", run_fetch, false, true},
    {"launch", "starts the ranks of a job as processes, and ends them together", run_launch},
    {"predict", "computes what a run has learnt to say of rows", run_predict, false, true},
    {"train", "trains what a run file describes", run_train, true, true},
};

// Where a verb needs libtorch, or this process is one of several, it goes on as the program beside it that has
// libtorch. Comes back where that is not so, or there is no such program.
void go_on_where_torch_is(char** argv) {
  if (argv[0] == nullptr || argv[1] == nullptr) return;
  const auto* verb = std::ranges::find(kVerbs, std::string_view(argv[1]), &Verb::name);
  if (verb == std::end(kVerbs)) return;
  if (!verb->needs_torch && !(verb->on_ranks && discover_place())) return;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path other = self.parent_path() / "tutti-torch";
  if (self.filename() != other.filename()) ::execv(other.c_str(), argv);
}

void explain_yourself() {
  fmt::print("tutti {}: trains neural networks together, one graph under any strategy\n\n", TUTTI_VERSION);
  fmt::print("usage: tutti <verb> [options]\n\nverbs:\n");
  for (const Verb& verb : kVerbs) fmt::print("  {:<10} {}\n", verb.name, verb.summary);
  fmt::print(
      "\nexamples:\n"
      "  tutti train examples/fashion_mnist.json\n"
      "  tutti train examples/fashion_mnist.json --set train.epochs=5 --output runs/longer\n"
      "  tutti eval runs/first\n"
      "  tutti export runs/first weights.safetensors\n"
      "  tutti check examples/fashion_mnist.json\n"
      "  tutti bench all-reduce --ranks 2,4 --bytes 1KiB,4MiB,64MiB\n"
      "  tutti bench all-reduce --ranks 2,4,8 --bytes 1KiB,64MiB --explain\n"
      "  tutti launch --processes 4 -- ./my_program\n"
      "  tutti launch --processes 2 -- train examples/fashion_mnist.json\n"
      "  tutti launch --processes 4 -- bench all-reduce\n"
      "\n'tutti <verb> --help' tells a verb's options, 'tutti --version' the version.\n");
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    explain_yourself();
  } else if (arguments[0] == "--version") {
    fmt::print("tutti {}\n", TUTTI_VERSION);
  } else {
    find_verb(kVerbs, arguments[0], "verb").run(Arguments(arguments).subspan(1));
  }
}

}  // namespace

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  return names;
}

const Verb& find_verb(std::span<const Verb> verbs, std::string_view name, std::string_view kind) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) {
    if (verb.name == name) return verb;
    names.emplace_back(verb.name);
  }
  if (const std::optional<std::string> nearest = nearest_name(name, names))
    throw UsageError(fmt::format("there is no {} '{}'; did you mean '{}'?", kind, name, *nearest));
  throw UsageError(fmt::format("there is no {} '{}'; there is: {}", kind, name, fmt::join(names, ", ")));
}

}  // namespace tutti::cli

int main(int argc, char** argv) {
  int code = 0;
  try {
    tutti::cli::go_on_where_torch_is(argv);
    tutti::cli::run({argv + 1, argv + argc});
  } catch (const tutti::cli::Ended& ended) {
    code = ended.code;
  } catch (const tutti::UsageError& error) {
    fmt::print(stderr, "tutti: {}\n", error.what());
    code = 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tutti: out of memory\n");
    code = 1;
  } catch (const std::exception& error) {
    const std::string_view why = error.what();  // of libtorch's, with a trace behind it
    fmt::print(stderr, "tutti: {}\n", why.substr(0, why.find("\nException raised from")));
    code = 1;
  } catch (...) {  // of a plugin's
    fmt::print(stderr, "tutti: what was thrown is no std::exception\n");
    code = 1;
  }
  // A full disk or a closed pipe shows only when the last of it is written.
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == 0) {
    fmt::print(stderr, "tutti: the output could not be written\n");
    code = 1;
  }
  return code;
}
