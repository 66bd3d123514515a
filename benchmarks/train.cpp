// `./bench train`: the training of examples/fashion_mnist.json from end to end, with its data, its evaluations and its
// checkpoints: by tutti on 2 replicas and on 1, and the same written in Python with PyTorch.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

#include "cli/command_line.hpp"
#include "cli/process.hpp"
#include "report.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

using Json = nlohmann::json;

// In the order of their rows.
const std::vector<std::string_view> kEngines{"tutti", "tutti-processes", "tutti-1", "ddp", "pytorch"};

// What is timed: `training` is from the first step to the end of the last evaluation, without start-up and reading.
enum class Part { program, training };

std::string to_string(Part part) { return part == Part::program ? "the whole program" : "training"; }

std::string epochs_text(int epochs) { return fmt::format("{} epoch{}", epochs, epochs == 1 ? "" : "s"); }

struct Request {
  std::vector<std::string> engines;
  int epochs = 0;
  RunOptions run{.seconds = 0};
};

// Of each pass.
struct EngineFigures {
  std::map<Part, std::vector<double>> seconds;
  std::vector<double> accuracies;
};

struct TrainMeasurements {
  std::map<std::string, EngineFigures> engines;
  std::vector<double> one_step;  // seconds of a program that trains one step, evaluates, and writes a checkpoint

  std::optional<double> seconds(Part part, const std::string& engine) const {
    const auto found = engines.find(engine);
    return found == engines.end() ? std::nullopt : std::optional(cli::median(found->second.seconds.at(part)));
  }
  std::optional<double> speed(Part part, const std::string& ours, const std::string& theirs) const {
    return speed_ratio(seconds(part, ours), seconds(part, theirs));
  }
};

// What all train lies beside this program.
std::filesystem::path run_file() { return beside("fashion_mnist.json"); }

int epochs_of_run_file() { return parse_object(text_of(run_file())).at("train").at("epochs"); }

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  request.epochs = epochs_of_run_file();
  std::string engines = fmt::format("{}", fmt::join(kEngines, ","));
  cli::CommandLine line(
      "Trains examples/fashion_mnist.json from end to end: tutti beside the same in Python with PyTorch.",
      "./bench train");
  line.option("--engine", engines, "engines to time, with commas between");
  line.option("--epochs", request.epochs, 1, 1000, "passes over the images");
  add_run_options(line, request.run);
  if (!line.parse(arguments)) return false;
  request.engines = parse_names("--engine", engines, kEngines);
  return true;
}

// What is learnt, and in how many seconds of training.
struct Trained {
  double seconds = 0;
  double accuracy = 0;
};

// Of the events that `tutti train --json` tells, the last evaluation.
Trained parse_events(const std::string& text, int epochs) {
  std::optional<Trained> last;
  std::int64_t epoch = 0;
  bool is_finished = false;
  for (const std::string_view line : lines_of(text)) {
    const Json event = parse_object(line);
    if (event.at("event") == "evaluation_ended" && event.at("split") == "test") {
      last = {.seconds = event.at("seconds"), .accuracy = event.at("metrics").at("accuracy")};
      epoch = event.at("epoch");
    }
    is_finished |= event.at("event") == "run_ended" && event.at("reason") == "finished";
  }
  if (!last || !is_finished || epoch != epochs)
    throw Error(fmt::format("it did not tell that it finished, with an evaluation after epoch {}", epochs));
  return *last;
}

Trained parse_result(const std::string& text, const std::string& engine, int epochs) {
  const Json result = parse_object(text);
  if (result.at("engine") != engine || result.at("epochs") != epochs)
    throw Error("it measured something else: " + text);
  return {.seconds = result.at("seconds"), .accuracy = result.at("accuracy")};
}

std::vector<std::string> words_of(const std::string& engine, const std::string& folder, int epochs) {
  if (engine == "ddp" || engine == "pytorch") {
    return {"ddp_train.py", run_file(), "--epochs", std::to_string(epochs), "--processes", engine == "ddp" ? "2" : "1"};
  }
  TrainCommand command{.run_file = run_file(), .output = folder, .sets = {fmt::format("train.epochs={}", epochs)}};
  if (engine == "tutti-1") command.sets.emplace_back("graph.strategy.num_replicas=1");
  if (engine == "tutti-processes") command.processes = 2;
  return train_words(command);
}

Turn train_turn(const std::string& engine, int epochs, const std::filesystem::path& scratch,
                const std::vector<std::string>& environment, TrainMeasurements& measured) {
  const std::filesystem::path folder = scratch / engine;
  return {
      .name = fmt::format("{}, {}", engine, epochs_text(epochs)),
      .words = words_of(engine, folder, epochs),
      .environment = environment,
      .take =
          [=, &measured](const std::string& text) {
            std::filesystem::remove_all(folder);
            const Trained trained =
                engine.starts_with("tutti") ? parse_events(text, epochs) : parse_result(text, engine, epochs);
            EngineFigures& figures = measured.engines[engine];
            figures.seconds[Part::training].push_back(trained.seconds);
            figures.accuracies.push_back(trained.accuracy);
          },
      .took = [=, &measured](
                  const Spent& spent) { measured.engines[engine].seconds[Part::program].push_back(spent.seconds); }};
}

// How soon training begins, as somebody finds it who starts tutti: it finds the BLAS kernels itself.
Turn one_step_turn(const std::filesystem::path& scratch, TrainMeasurements& measured) {
  const std::filesystem::path folder = scratch / "one-step";
  return {.name = "tutti, one step",
          .words = train_words({.run_file = run_file(), .output = folder, .sets = {R"(train={"steps": 1})"}}),
          .take =
              [folder](const std::string& text) {
                std::filesystem::remove_all(folder);
                (void)parse_events(text, 1);
              },
          .took = [&measured](const Spent& spent) { measured.one_step.push_back(spent.seconds); }};
}

void print_json(const TrainMeasurements& measured, const Request& request) {
  for (const std::string& engine : request.engines) {
    const auto found = measured.engines.find(engine);
    if (found == measured.engines.end()) continue;
    fmt::print("{}\n", nlohmann::ordered_json{{"engine", engine},
                                              {"epochs", request.epochs},
                                              {"program_seconds", *measured.seconds(Part::program, engine)},
                                              {"training_seconds", *measured.seconds(Part::training, engine)},
                                              {"accuracy", cli::median(found->second.accuracies)},
                                              {"passes", found->second.accuracies.size()}}
                           .dump());
  }
  if (measured.one_step.empty()) return;
  fmt::print("{}\n", nlohmann::ordered_json{{"engine", "tutti"},
                                            {"steps", 1},
                                            {"program_seconds", cli::median(measured.one_step)},
                                            {"passes", measured.one_step.size()}}
                         .dump());
}

void print_table(const TrainMeasurements& measured, const Request& request) {
  std::vector<std::vector<std::string>> rows{
      {"engine", "the whole program", "training", "test accuracy", "tutti's speed over it, whole", "training"}};
  for (const std::string& engine : request.engines) {
    const auto found = measured.engines.find(engine);
    rows.push_back(
        {engine, time_cell(measured.seconds(Part::program, engine)),
         time_cell(measured.seconds(Part::training, engine)),
         found == measured.engines.end() ? "-" : fmt::format("{:.2f} %", 100 * cli::median(found->second.accuracies)),
         ratio_cell(measured.speed(Part::program, "tutti", engine)),
         ratio_cell(measured.speed(Part::training, "tutti", engine))});
  }
  fmt::print("examples/fashion_mnist.json, {}, one BLAS thread for each replica\n", epochs_text(request.epochs));
  fmt::print("(training: from the first step to the end of the last evaluation)\n");
  print_rows(rows);
  fmt::print("\n");
}

std::vector<Judgement> judge_targets(const TrainMeasurements& measured) {
  std::vector<Judgement> judgements;
  const auto add = [&](const char* target, const char* theirs, double least) {
    for (const Part part : {Part::program, Part::training}) {
      judgements.push_back(judge(
          fmt::format("{}: {}", to_string(part), target), std::vector{part},
          [&](Part its) { return measured.speed(its, "tutti", theirs); }, least));
    }
  };
  add("2 replicas have at least 1.4 times the speed of 1", "tutti-1", 1.4);
  add("2 replicas have at least 2 times DDP's speed", "ddp", 2);
  constexpr double kMostSeconds = 1.5;
  Judgement begin{"the end of the first step is reached in 1.5 s (told: one step, an evaluation and a checkpoint)", "",
                  false};
  if (!measured.one_step.empty()) {
    const double seconds = cli::median(measured.one_step);
    begin.measured = time_cell(seconds);
    begin.reached = seconds < kMostSeconds;
  }
  judgements.push_back(std::move(begin));
  return judgements;
}

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return {};
  const std::vector<std::string> environment = blas_environment();
  const cli::ScratchFolder scratch;
  TrainMeasurements measured;
  std::vector<Turn> turns;
  for (const std::string& engine : request.engines)
    turns.push_back(train_turn(engine, request.epochs, scratch.path(), environment, measured));
  if (std::ranges::count(request.engines, "tutti") > 0) turns.push_back(one_step_turn(scratch.path(), measured));
  std::vector<std::string> failures = take_turns({turns}, request.run);
  if (request.run.json) {
    print_json(measured, request);
  } else {
    print_table(measured, request);
    print_targets("tutti's speed over theirs, and how soon it begins", judge_targets(measured));
  }
  return failures;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
