// `./bench data-parallel`: a training step on two replicas, in one run: tutti, PyTorch's DistributedDataParallel, a
// plain loop, and two replicas that never talk; what tutti's memory is; whether its losses are PyTorch's; and what a
// network learns where gradients travel compressed.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/strategy/compression.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "data_parallel_report.hpp"
#include "data_parallel_result.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

// Lets those that are named behind --engine take turns in one process.
const std::string kEngines = "data_parallel_engines";
bool is_shared(const std::vector<std::string>& words) { return words.front() == kEngines; }

struct StepEngine {
  std::string name;                // as its results say
  std::vector<std::string> words;  // it also gets --model, --batch and --seconds
  std::vector<int> threads = {1};  // for BLAS and OpenMP, of each replica; a turn for each, of which the better counts
};

std::vector<StepEngine> all_engines() {
  return {
      {"tutti", {kEngines}},
      {"tutti-processes",
       {"tutti", "launch", "--processes", "2", "--no-prefix", "--", beside(kEngines), "--engine", "tutti-processes"}},
      {"ddp", {"ddp_peer.py"}},
      {"single", {kEngines}, {1, 2}},
      {"never-talk", {kEngines}}};
}

struct Request {
  std::vector<StepEngine> engines;
  std::vector<std::string> models;
  std::vector<int> batches;
  bool time = false, memory = false, losses = false, accuracy = false;
  int epochs = 5;
  RunOptions run{.seconds = 1};
};

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  const std::vector<StepEngine> engines = all_engines();
  const std::vector<std::string_view> known_models(kStepModels.begin(), kStepModels.end());
  std::vector<std::string_view> known_engines;
  for (const StepEngine& engine : engines) known_engines.push_back(engine.name);
  const std::vector<std::string_view> known_measurements{"time", "memory", "losses", "accuracy"};

  std::string models = fmt::format("{}", fmt::join(known_models, ","));
  std::string names = fmt::format("{}", fmt::join(known_engines, ","));
  std::string batches = "64,512";
  std::string measurements = fmt::format("{}", fmt::join(known_measurements, ","));
  cli::CommandLine line("Times a training step on two replicas: tutti beside PyTorch's DDP and loops written by hand.",
                        "./bench data-parallel");
  line.option(
      "--measure", measurements,
      "the time of a step, tutti's memory, how its losses differ from DDP's, what is learnt with each compression; "
      "with commas between");
  line.option("--model", models, "networks to time, with commas between");
  line.option("--batch", batches, "rows of both replicas together, with commas between");
  line.option("--engine", names, "engines to time, with commas between");
  line.option("--epochs", request.epochs, 1, 1000, "passes over Fashion-MNIST, where accuracy is measured");
  add_run_options(line, request.run);
  if (!line.parse(arguments)) return false;

  request.models = parse_names("--model", models, known_models);
  request.batches = cli::parse_counts("--batch", batches, kMostRows);
  for (const int batch : request.batches) {
    if (batch % 2 != 0) throw UsageError(fmt::format("--batch: expected rows for two replicas alike, found {}", batch));
  }
  for (const std::string& name : parse_names("--engine", names, known_engines))
    request.engines.push_back(*std::ranges::find(engines, name, &StepEngine::name));
  const std::vector<std::string> wanted = parse_names("--measure", measurements, known_measurements);
  request.time = std::ranges::count(wanted, "time") > 0;
  request.memory = std::ranges::count(wanted, "memory") > 0;
  request.losses = std::ranges::count(wanted, "losses") > 0;
  request.accuracy = std::ranges::count(wanted, "accuracy") > 0;
  return true;
}

// What is measured in one process, with so many threads for BLAS and OpenMP.
struct StepTurn {
  std::vector<std::string> engines;
  std::vector<std::string> words;
  int threads = 1;
};

std::vector<StepTurn> step_turns(const std::vector<StepEngine>& engines) {
  std::vector<StepTurn> turns;
  for (const StepEngine& engine : engines) {
    for (const int threads : engine.threads) {
      const auto same = std::ranges::find_if(turns, [&](const StepTurn& turn) {
        return is_shared(engine.words) && turn.words == engine.words && turn.threads == threads;
      });
      if (same != turns.end()) {
        same->engines.push_back(engine.name);
      } else {
        turns.push_back({{engine.name}, engine.words, threads});
      }
    }
  }
  return turns;
}

void take_steps(const std::string& text, const std::vector<std::string>& engines, const std::string& model,
                const std::vector<int>& batches, std::vector<StepResult>& results) {
  std::vector<std::pair<int, std::string>> measured, asked;
  for (const int batch : batches)
    for (const std::string& engine : engines) asked.emplace_back(batch, engine);
  for (const std::string_view line : lines_of(text)) {
    StepResult result = parse_step_result(line);
    measured.emplace_back(result.batch, result.engine);
    if (result.model != model || std::ranges::find(asked, measured.back()) == asked.end())
      throw Error(fmt::format("it measured something else: {}", line));
    results.push_back(std::move(result));
  }
  if (measured != asked) throw Error("it did not measure all engines and batches");
}

std::vector<Turn> turns_at(const std::string& model, const Request& request,
                           const std::vector<std::string>& environment, std::vector<StepResult>& results) {
  std::vector<Turn> turns;
  for (const StepTurn& its : step_turns(request.engines)) {
    Turn turn{.name = fmt::format("{}, {}", model, fmt::join(its.engines, " and ")),
              .words = its.words,
              .environment = environment,
              .take = [&request, &results, engines = its.engines, model](const std::string& text) {
                take_steps(text, engines, model, request.batches, results);
              }};
    if (its.threads > 1) turn.name += fmt::format(" with {} BLAS threads", its.threads);
    for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
      turn.environment.push_back(fmt::format("{}={}", variable, its.threads));
    const auto add = [&](std::initializer_list<std::string> words) {
      turn.words.insert(turn.words.end(), words.begin(), words.end());
    };
    if (is_shared(its.words)) add({"--engine", fmt::format("{}", fmt::join(its.engines, ","))});
    add({"--model", model, "--batch", fmt::format("{}", fmt::join(request.batches, ",")), "--seconds",
         fmt::format("{}", request.run.seconds)});
    turns.push_back(std::move(turn));
  }
  return turns;
}

Turn memory_turn(int replicas, const std::vector<std::string>& environment, std::vector<MemoryResult>& results) {
  return {
      .name = fmt::format("{}, memory of tutti with {} replica{}", kMemoryModel, replicas, replicas == 1 ? "" : "s"),
      .words = {kEngines, "--engine", "tutti", "--memory", "--model", std::string(kMemoryModel), "--batch", "8",
                "--replicas", std::to_string(replicas)},
      .environment = environment,
      .take =
          [&results, replicas](const std::string& text) {
            results.push_back(parse_memory_result(text));
            if (results.back().replicas != replicas) throw Error("it measured something else: " + text);
          },
      .once = true};
}

Turn losses_turn(const std::vector<std::string>& environment, std::optional<AgreementResult>& result) {
  return {.name = "losses of tutti and ddp",
          .words = {"ddp_agrees.py", "--at-most", "inf"},
          .environment = environment,
          .take = [&result](const std::string& text) { result = parse_agreement_result(text); },
          .once = true};
}

Turn accuracy_turn(const Compression& compression, int epochs, const std::vector<std::string>& environment,
                   std::vector<AccuracyResult>& results) {
  const std::string name = to_string(compression);
  return {.name = fmt::format("{}, accuracy of tutti with {}", kAccuracyModel, name),
          .words = {kEngines, "--engine", "tutti", "--accuracy", name, "--model", std::string(kAccuracyModel),
                    "--batch", "64", "--epochs", std::to_string(epochs)},
          .environment = environment,
          .take =
              [&results, name, epochs](const std::string& text) {
                results.push_back(parse_accuracy_result(text));
                if (results.back().compression != name || results.back().epochs != epochs)
                  throw Error("it measured something else: " + text);
              },
          .once = true};
}

void print_json(const DataParallelMeasurements& measured) {
  for (const StepResult& result : measured.steps) fmt::print("{}\n", to_json_line(result));
  for (const MemoryResult& result : measured.memory) fmt::print("{}\n", to_json_line(result));
  if (measured.agreement) fmt::print("{}\n", to_json_line(*measured.agreement));
  for (const AccuracyResult& result : measured.accuracy) fmt::print("{}\n", to_json_line(result));
}

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return {};
  const std::vector<std::string> environment = blas_environment();
  DataParallelMeasurements measured;
  std::vector<StepResult> results;
  std::vector<std::vector<Turn>> groups;
  if (request.time) {
    for (const std::string& model : request.models) groups.push_back(turns_at(model, request, environment, results));
  }
  if (request.memory)
    groups.push_back({memory_turn(1, environment, measured.memory), memory_turn(8, environment, measured.memory)});
  if (request.losses) groups.push_back({losses_turn(environment, measured.agreement)});
  if (request.accuracy) {
    groups.emplace_back();
    for (const Compression& compression : compressions())
      groups.back().push_back(accuracy_turn(compression, request.epochs, environment, measured.accuracy));
  }
  std::vector<std::string> failures = take_turns(groups, request.run);

  measured.steps = fastest_of_each_engine(combine_passes(results));
  if (request.run.json) {
    print_json(measured);
  } else {
    print_data_parallel_tables(measured);
    print_targets("tutti's speed over theirs, memory, losses, accuracy", judge_data_parallel_targets(measured));
  }
  return failures;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
