// `tutti launch --processes 4 -- <command>`: starts the ranks of a job as processes of this host, in the environment
// that torchrun gives them, and serves the store where they meet.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>
#include <tutti/transport/environment.hpp>
#include <tutti/transport/store_server.hpp>

#include "cli/command_line.hpp"
#include "cli/guardian.hpp"
#include "cli/job.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

struct Request {
  int processes = 0;
  std::string address = "127.0.0.1";
  int port = 0;
  std::string interface;
  bool no_shared_memory = false;
  std::string heartbeat;
  double grace = 5;
  bool keep_going = false;
  bool no_prefix = false;
  std::vector<std::string> words;  // what each rank runs
};

constexpr std::string_view kMoreHelp =
    "\nusage: tutti launch --processes N [options] -- <verb or program> [arguments]\n"
    "\nWhat follows '--' is a verb of tutti or a program, by its path or from the PATH.\n"
    "\nRank 0 gets the standard input. Each line that a rank prints goes to the same stream with its number before it; "
    "a\n"
    "line is passed on when it ends. The programs see pipes, where many keep their output back until there is much of\n"
    "it; Python does not while PYTHONUNBUFFERED is set, which is set to 1 where it is not.\n"
    "\nSignals are passed on to all ranks; a second SIGINT or SIGTERM kills them. When a rank fails the others have\n"
    "--grace seconds to end by themselves, are asked to end, and after as long again are killed. The exit code is "
    "that\n"
    "of the first rank that failed, or 128 and the signal that ended it. With --keep-going others go on without ranks\n"
    "that a signal ends, as far as what they run can, until rank 0 ends.\n"
    "\nexamples:\n"
    "  tutti launch --processes 4 -- ./my_program --fast\n"
    "  tutti launch --processes 4 --keep-going -- train parameter_server.json\n"
    "  tutti launch --processes 2 -- python3 train.py\n";

int parse_whole(std::string_view option, std::string_view text, int least, int most) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc{} || rest != end || number < least || number > most)
    throw UsageError(fmt::format("{}: expected a whole number from {} to {}, found '{}'", option, least, most, text));
  return number;
}

double parse_seconds(std::string_view option, std::string_view text, double least, double most) {
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, seconds);
  if (problem != std::errc{} || rest != end || !(seconds >= least && seconds <= most))
    throw UsageError(
        fmt::format("{}: expected a number of seconds from {} to {:.0f}, found '{}'", option, least, most, text));
  return seconds;
}

// What other launchers call it.
void refuse_names_of_others(Arguments options) {
  for (const std::string_view name : {"-np", "--np", "--nproc_per_node", "--nproc-per-node", "--ntasks"}) {
    const bool is_there = std::ranges::any_of(
        options, [&](const std::string& option) { return option.substr(0, option.find('=')) == name; });
    if (is_there) throw UsageError(fmt::format("there is no option {}; did you mean --processes?", name));
  }
}

// False where help was asked for, and printed.
bool parse_request(Arguments arguments, Request& request) {
  std::string processes;
  std::string port = "0";
  std::string grace = "5";
  CommandLine line("Starts the ranks of a job as processes of this host, and ends them together.", "tutti launch");
  line.footer(std::string(kMoreHelp));
  line.option("-n,--processes", processes, "how many ranks to start");
  line.option("--address", request.address, "where the store that the ranks meet at listens");
  line.option("--port", port, "its port; 0: any that is free");
  line.option("--interface", request.interface, "the network interface, or its address, that ranks talk on");
  line.flag("--no-shared-memory", request.no_shared_memory, "ranks keep to messages");
  line.option("--heartbeat", request.heartbeat, "seconds after which a silent rank counts as lost");
  const CommandOption grace_option =
      line.option("--grace", grace, "seconds that ranks have to end, before they are made to; 60 for train");
  line.flag("--keep-going", request.keep_going, "go on without ranks that a signal ends, but for rank 0");
  line.flag("--no-prefix", request.no_prefix, "pass lines on without the rank's number before them");

  const auto dashes = std::ranges::find(arguments, "--");
  const auto options = arguments.first(static_cast<std::size_t>(dashes - arguments.begin()));
  // Help may be asked for without it.
  const bool asks_for_help =
      std::ranges::find(options, "--help") != options.end() || std::ranges::find(options, "-h") != options.end();
  refuse_names_of_others(options);
  if (asks_for_help || dashes != arguments.end()) {
    if (!line.parse(options)) return false;
  }
  if (dashes == arguments.end())
    throw UsageError("write '--' before what the ranks run, as in: tutti launch --processes 4 -- ./my_program");
  request.words.assign(dashes + 1, arguments.end());
  if (request.words.empty() || request.words[0].empty())
    throw UsageError("there is nothing to run after '--', as in: tutti launch --processes 4 -- ./my_program");
  if (processes.empty()) throw UsageError("say how many ranks to start, as in: --processes 4");
  request.processes = parse_whole("--processes", processes, 1, Guardian::kMostGroups);
  request.port = parse_whole("--port", port, 0, 65535);
  // A run that is interrupted ends its step, which may be a long one, and writes a checkpoint.
  if (!grace_option.was_given() && request.words[0] == "train") grace = "60";
  request.grace = parse_seconds("--grace", grace, 0, 86400);
  if (!request.heartbeat.empty()) parse_seconds("--heartbeat", request.heartbeat, 0.001, 1e6);
  return true;
}

// Found before anything starts: a program that is not there should cost a sentence, not a job.
void refuse_missing_program(const std::string& word) {
  namespace fs = std::filesystem;
  const auto is_program = [](const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
  };
  if (word.find('/') != std::string::npos) {
    std::error_code ignored;
    if (is_program(word)) return;
    if (fs::is_directory(word, ignored)) throw UsageError(fmt::format("'{}' is a folder, no program", word));
    if (fs::exists(word, ignored)) throw UsageError(fmt::format("'{}' is not executable", word));
    throw UsageError(fmt::format("there is no program '{}'", word));
  }
  const char* path = std::getenv("PATH");
  const std::string_view folders = path == nullptr ? "/bin:/usr/bin" : path;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string_view folder = folders.substr(begin, end - begin);
    if (is_program(fs::path(folder.empty() ? "." : folder) / word)) return;
    begin = end + 1;
  }
  const std::optional<std::string> nearest = nearest_name(word, verb_names());
  throw UsageError(fmt::format("'{}' is no verb of tutti, and no program on the PATH{}", word,
                               nearest ? fmt::format("; did you mean '{}'?", *nearest) : ""));
}

std::string random_name() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

Command command_of_rank(const Request& request, int rank, const StoreServer& store, const std::string& job) {
  Command command{
      .words = request.words,
      .environment = {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", request.processes),
                      fmt::format("LOCAL_RANK={}", rank), fmt::format("LOCAL_WORLD_SIZE={}", request.processes),
                      "GROUP_RANK=0", fmt::format("MASTER_ADDR={}", store.address()),
                      fmt::format("MASTER_PORT={}", store.port()), "TORCHELASTIC_USE_AGENT_STORE=True",
                      "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_RUN_ID=" + job, "TUTTI_LAUNCHER=launch"},
      .without = launcher_variables()};
  // One thread each, as the ranks share the cores; and output as it comes. Who set them knows better.
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONUNBUFFERED"}) {
    if (std::getenv(name) == nullptr) command.environment.push_back(fmt::format("{}=1", name));
  }
  if (!request.interface.empty()) command.environment.push_back("TUTTI_INTERFACE=" + request.interface);
  if (request.no_shared_memory) command.environment.emplace_back("TUTTI_SHARED_MEMORY=0");
  if (!request.heartbeat.empty()) command.environment.push_back("TUTTI_HEARTBEAT=" + request.heartbeat);
  return command;
}

}  // namespace

void run_launch(Arguments arguments) {
  Request request;
  if (!parse_request(arguments, request)) return;
  if (const std::vector<std::string> verbs = verb_names(); std::ranges::find(verbs, request.words[0]) != verbs.end()) {
    request.words.insert(request.words.begin(), own_path());
  } else {
    refuse_missing_program(request.words[0]);
  }
  Signals signals(job_signals());
  const StoreServer store({.address = request.address, .port = request.port});
  const std::string name = random_name();
  Job job{.ranks = {},
          .grace = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(request.grace)),
          .prefix = !request.no_prefix,
          .keep_going = request.keep_going};
  for (int rank = 0; rank < request.processes; ++rank) job.ranks.push_back(command_of_rank(request, rank, store, name));
  throw Ended{run_job(job, signals)};
}

}  // namespace tutti::cli
