// `./bench population`: two members of examples/population.json, at the same time on two cores and one after the other;
// and the same two trained by themselves, which shows what the controller costs.
#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>

#include "cli/command_line.hpp"
#include "cli/process.hpp"
#include "report.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

using Json = nlohmann::json;

// In the order of their rows.
const std::vector<std::string_view> kEngines{"tutti", "tutti-processes", "tutti-1", "alone"};

constexpr int kMembers = 2;
// Of members that are trained by themselves. Any others would cost the same.
constexpr std::array<double, kMembers> kRates{0.03, 0.06};

// So that nobody is measured who does not learn.
constexpr int kGenerationsToLearn = 2;
constexpr double kLeastAccuracy = 0.8;

constexpr const char* kFashionMnist = "/usr/share/datasets/fashion-mnist";

struct Request {
  std::vector<std::string> engines;
  int generations = 6;
  RunOptions run{.seconds = 0};
};

// One that trains members.
struct Program {
  std::string name;
  TrainCommand command;
  int members = 0;
};

// Of each pass.
struct ProgramFigures {
  std::vector<double> program_seconds;
  std::vector<double> training_seconds;
  std::vector<double> best;
};

// Medians; of programs that follow one another the sums.
struct EngineFigures {
  double program_seconds = 0;
  double training_seconds = 0;
  double best = 0;
  std::size_t passes = 0;
};

using EngineSeconds = double EngineFigures::*;

struct PopulationMeasurements {
  std::map<std::string, EngineFigures> engines;  // those of which all was measured

  std::optional<double> seconds(EngineSeconds which, const std::string& engine) const {
    const auto found = engines.find(engine);
    return found == engines.end() ? std::nullopt : std::optional(found->second.*which);
  }
  std::optional<double> speed(EngineSeconds which, const std::string& ours, const std::string& theirs) const {
    return speed_ratio(seconds(which, ours), seconds(which, theirs));
  }
};

// What all train lies beside this program.
std::filesystem::path run_file() { return beside("population.json"); }

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  std::string engines = fmt::format("{}", fmt::join(kEngines, ","));
  cli::CommandLine line("Trains two members of a population, at the same time, one after the other, and by themselves.",
                        "./bench population");
  line.option("--engine", engines, "engines to time, with commas between");
  line.option("--generations", request.generations, 1, 1000, "of an epoch each");
  add_run_options(line, request.run);
  if (!line.parse(arguments)) return false;
  request.engines = parse_names("--engine", engines, kEngines);
  return true;
}

// Fashion-MNIST without its test images: a run of one network evaluates these after each epoch, and a member does not.
std::vector<std::string> data_sets() {
  return {"data.source=idx", fmt::format("data.train_images={}/train-images-idx3-ubyte.gz", kFashionMnist),
          fmt::format("data.train_labels={}/train-labels-idx1-ubyte.gz", kFashionMnist), "data.split.test=0"};
}

// Nobody takes over, and what is searched does not change how much there is to compute.
Program population_program(const std::string& engine, int generations, const std::filesystem::path& scratch) {
  TrainCommand command{.run_file = run_file(), .output = scratch / engine, .sets = data_sets()};
  command.sets.insert(command.sets.end(),
                      {fmt::format("graph.strategy.population_size={}", kMembers),
                       fmt::format("graph.strategy.generations={}", generations),
                       R"(graph.strategy.generation={"epochs": 1})", R"(graph.strategy.exploit={"method": "None"})",
                       fmt::format("graph.strategy.threads={}", engine == "tutti-1" ? 1 : kMembers),
                       R"(search={"optimizer.lr": {"float": [0.01, 0.1], "scale": "log"}})"});
  if (engine == "tutti-processes") command.processes = kMembers;
  return {.name = engine, .command = std::move(command), .members = kMembers};
}

// The same members without a controller. A checkpoint after each epoch is what a member's file is to a population, and
// no more is told of single steps than a member tells.
std::vector<Program> lone_programs(int epochs, const std::filesystem::path& scratch) {
  // --set takes no key away.
  Json run = parse_object(text_of(run_file()));
  run.erase("search");
  const std::filesystem::path file = scratch / "alone.json";
  write_file(file, run.dump(2) + "\n");
  std::vector<Program> programs;
  for (const double rate : kRates) {
    const std::string name = fmt::format("alone-{}", programs.size());
    TrainCommand command{.run_file = file, .output = scratch / name, .sets = data_sets()};
    command.sets.insert(command.sets.end(),
                        {R"(graph.strategy={"type": "Local"})", fmt::format("train.epochs={}", epochs),
                         "train.log_every=1000000", fmt::format("optimizer.lr={}", rate)});
    programs.push_back({.name = name, .command = std::move(command), .members = 1});
  }
  return programs;
}

// What is learnt, and in how many seconds of training.
struct Trained {
  double seconds = 0;
  double best = 0;
};

// Of the events that `tutti train --json` tells. An epoch of a member alone counts as a generation.
Trained parse_events(const std::string& text, int members, int generations) {
  std::map<int, int> evaluated;  // how many, by generation
  int checkpoints = 0;
  double best = 0;
  std::optional<double> seconds;
  for (const std::string_view line : lines_of(text)) {
    const Json event = parse_object(line);
    const std::string what = event.at("event");
    if (what == "member_evaluated") {
      if (event.at("failure") != "") throw Error(fmt::format("a member failed: {}", line));
      best = std::max<double>(best, event.at("measured").at("accuracy"));
      ++evaluated[event.at("generation")];
    } else if (what == "evaluation_ended") {
      if (event.at("split") != "validation") throw Error(fmt::format("it evaluated more than a member does: {}", line));
      best = std::max<double>(best, event.at("metrics").at("accuracy"));
      ++evaluated[event.at("epoch")];
    } else if (what == "checkpoint_written") {
      ++checkpoints;
    } else if (what == "run_ended" && event.at("reason") == "finished") {
      seconds = event.at("seconds");
    }
  }
  std::map<int, int> wanted;
  for (int generation = 1; generation <= generations; ++generation) wanted[generation] = members;
  if (!seconds || evaluated != wanted)
    throw Error(fmt::format("it did not tell that it finished, with {} evaluated in each of {} generations",
                            members == 1 ? "a member" : fmt::format("{} members", members), generations));
  if (members == 1 && checkpoints != generations)
    throw Error(fmt::format("it wrote {} checkpoints, expected one after each of {} epochs", checkpoints, generations));
  if (generations >= kGenerationsToLearn && best <= kLeastAccuracy)
    throw Error(
        fmt::format("after {} generations {:.1f} % of the images for validation are told right, expected {:.0f} %",
                    generations, 100 * best, 100 * kLeastAccuracy));
  return {.seconds = *seconds, .best = best};
}

Turn program_turn(const Program& program, int generations, const std::vector<std::string>& environment,
                  std::map<std::string, ProgramFigures>& measured) {
  return {
      .name = fmt::format("{}, {} generation{}", program.name, generations, generations == 1 ? "" : "s"),
      .words = train_words(program.command),
      .environment = environment,
      .take =
          [=, &measured](const std::string& text) {
            std::filesystem::remove_all(program.command.output);
            const Trained trained = parse_events(text, program.members, generations);
            ProgramFigures& figures = measured[program.name];
            figures.training_seconds.push_back(trained.seconds);
            figures.best.push_back(trained.best);
          },
      .took = [=, &measured](const Spent& spent) { measured[program.name].program_seconds.push_back(spent.seconds); }};
}

// Nothing where one of its programs was not measured.
std::optional<EngineFigures> sum_up(const std::vector<Program>& programs,
                                    const std::map<std::string, ProgramFigures>& measured) {
  EngineFigures sum;
  for (const Program& program : programs) {
    const auto found = measured.find(program.name);
    if (found == measured.end()) return std::nullopt;
    const ProgramFigures& figures = found->second;
    sum.program_seconds += cli::median(figures.program_seconds);
    sum.training_seconds += cli::median(figures.training_seconds);
    sum.best = std::max(sum.best, cli::median(figures.best));
    sum.passes = sum.passes == 0 ? figures.best.size() : std::min(sum.passes, figures.best.size());
  }
  return sum;
}

void print_json(const PopulationMeasurements& measured, const Request& request) {
  for (const std::string& engine : request.engines) {
    const auto found = measured.engines.find(engine);
    if (found == measured.engines.end()) continue;
    fmt::print("{}\n", nlohmann::ordered_json{{"engine", engine},
                                              {"generations", request.generations},
                                              {"training_seconds", found->second.training_seconds},
                                              {"program_seconds", found->second.program_seconds},
                                              {"best", found->second.best},
                                              {"passes", found->second.passes}}
                           .dump());
  }
}

void print_table(const PopulationMeasurements& measured, const Request& request) {
  constexpr EngineSeconds kProgram = &EngineFigures::program_seconds;
  constexpr EngineSeconds kTraining = &EngineFigures::training_seconds;
  std::vector<std::vector<std::string>> rows{{"engine", "the whole program", "training", "best validation accuracy",
                                              "tutti's speed over it, whole", "training"}};
  for (const std::string& engine : request.engines) {
    const auto found = measured.engines.find(engine);
    rows.push_back({engine, time_cell(measured.seconds(kProgram, engine)),
                    time_cell(measured.seconds(kTraining, engine)),
                    found == measured.engines.end() ? "-" : fmt::format("{:.2f} %", 100 * found->second.best),
                    ratio_cell(measured.speed(kProgram, "tutti", engine)),
                    ratio_cell(measured.speed(kTraining, "tutti", engine))});
  }
  fmt::print("examples/population.json, {} members, {} generation{} of an epoch, one BLAS thread for each member\n",
             kMembers, request.generations, request.generations == 1 ? "" : "s");
  fmt::print("(training: from the first step until the last member is evaluated and all is written)\n");
  print_rows(rows);
  fmt::print("\n");
}

std::vector<Judgement> judge_targets(const PopulationMeasurements& measured) {
  constexpr EngineSeconds kTraining = &EngineFigures::training_seconds;
  constexpr double kLeastSpeed = 1.8;
  constexpr double kMostCost = 0.02;
  Judgement cost{
      fmt::format("the controller adds at most {:.0f} % to training the same members alone", 100 * kMostCost), "",
      false};
  if (const std::optional<double> ratio = measured.speed(kTraining, "alone", "tutti-1")) {
    cost.measured = fmt::format("{:+.1f} %", 100 * (*ratio - 1));
    cost.reached = *ratio <= 1 + kMostCost;
  }
  return {judge(fmt::format("two members on two cores at least {} times as fast as one after the other", kLeastSpeed),
                measured.speed(kTraining, "tutti", "tutti-1"), kLeastSpeed),
          std::move(cost)};
}

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return {};
  const std::vector<std::string> environment = blas_environment();
  const cli::ScratchFolder scratch;
  std::map<std::string, std::vector<Program>> programs;  // by engine
  std::map<std::string, ProgramFigures> of_programs;
  std::vector<Turn> turns;
  for (const std::string& engine : request.engines) {
    programs[engine] = engine == "alone" ? lone_programs(request.generations, scratch.path())
                                         : std::vector{population_program(engine, request.generations, scratch.path())};
    for (const Program& program : programs[engine])
      turns.push_back(program_turn(program, request.generations, environment, of_programs));
  }
  std::vector<std::string> failures = take_turns({turns}, request.run);
  PopulationMeasurements measured;
  for (const auto& [engine, its] : programs) {
    if (const std::optional<EngineFigures> sum = sum_up(its, of_programs)) measured.engines.emplace(engine, *sum);
  }
  if (request.run.json) {
    print_json(measured, request);
  } else {
    print_table(measured, request);
    print_targets("what two cores gain, and what the controller costs", judge_targets(measured));
  }
  return failures;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
