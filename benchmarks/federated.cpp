// `./bench federated`: rounds of federated averaging on MNIST (McMahan et al., 2017), as examples/federated.json has
// them: by tutti, by the same written in Python with PyTorch, and by bare products of matrices, the limit. And the
// memory that tutti needs for a thousand clients.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/bytes.hpp>
#include <tutti/base/error.hpp>
#include <tutti/data/data_folder.hpp>

#include "cli/command_line.hpp"
#include "cli/process.hpp"
#include "cli/units.hpp"
#include "report.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

using Json = nlohmann::json;

// In the order of their rows.
const std::vector<std::string_view> kEngines{"tutti", "python", "cblas"};

constexpr int kThreads = 2;
constexpr int kTrainingRows = 60'000;  // of MNIST
constexpr int kPixels = 28 * 28;

// So that nobody is measured who does not learn.
constexpr int kRoundsToLearn = 10;
constexpr double kLeastAccuracy = 0.8;

constexpr int kManyClients = 1000;
constexpr int kRoundsOfMany = 2;
constexpr std::uint64_t kMostBytes = 1'000'000'000;

// Longer than `tutti fetch` waits for the network.
constexpr Duration kFetchPatience = std::chrono::minutes(15);

struct Request {
  std::vector<std::string> engines;
  int rounds = 20;
  RunOptions run{.seconds = 0};

  bool has(std::string_view engine) const { return std::ranges::count(engines, engine) > 0; }
};

// What is trained.
struct Task {
  std::vector<int> layers;
  int clients = 0;
  int asked = 0;  // in a round
  int batch = 0;
  double rate = 0;
  int seed = 0;

  int steps_per_round() const {
    const int rows = kTrainingRows / clients;
    return asked * ((rows + batch - 1) / batch);
  }
};

// Of each pass.
struct EngineFigures {
  std::vector<double> round_seconds;
  std::vector<double> accuracies;
};

struct FederatedMeasurements {
  std::map<std::string, EngineFigures> engines;
  std::map<std::string, std::vector<Bytes>> peaks_of_many;  // by compression

  std::optional<double> round_seconds(const std::string& engine) const {
    const auto found = engines.find(engine);
    return found == engines.end() ? std::nullopt : std::optional(cli::median(found->second.round_seconds));
  }
  std::optional<double> speed_over(const std::string& theirs) const {
    return speed_ratio(round_seconds("tutti"), round_seconds(theirs));
  }
};

// What all train lies beside this program.
std::filesystem::path run_file() { return beside("federated.json"); }

// The peers are told what the run file says, and do nothing but FedAvg with SGD on linear layers with relus between.
Task task_of_run_file() {
  const auto expect = [](const std::string& what, const Json& found, const Json& wanted) {
    if (found != wanted)
      throw Error(fmt::format("{}: the peers know {} {}, and found {}", run_file().string(), what, wanted.dump(),
                              found.dump()));
  };
  const Json run = parse_object(text_of(run_file()));
  const Json& strategy = run.at("graph").at("strategy");
  expect("the loss", run.at("loss"), "cross_entropy");
  expect("the metrics", run.at("metrics"), Json::array({"accuracy"}));
  Task task{.layers = {kPixels},
            .clients = strategy.at("num_clients"),
            .asked = 0,
            .batch = run.at("data").at("batch_size"),
            .rate = run.at("optimizer").at("lr"),
            .seed = run.at("seed")};
  expect("the optimizer", run.at("optimizer"), {{"name", "sgd"}, {"lr", task.rate}});
  const double fraction = strategy.at("client_selection").at("fraction");
  expect("the strategy", strategy,
         {{"type", "Federated"},
          {"num_clients", task.clients},
          {"rounds", strategy.at("rounds")},
          {"aggregation", {{"method", "FedAvg"}}},
          {"client_selection", {{"method", "Random"}, {"fraction", fraction}}}});
  task.asked = static_cast<int>(std::lround(fraction * task.clients));
  std::string_view wanted = "flatten";
  for (const Json& node : run.at("graph").at("nodes")) {
    expect("as the next operator", node.at("op"), wanted);
    if (wanted == "linear") task.layers.push_back(node.at("units"));
    wanted = wanted == "linear" ? "relu" : "linear";
  }
  return task;
}

// False where help was asked for, and printed.
bool parse_request(const std::vector<std::string>& arguments, Request& request) {
  std::string engines = fmt::format("{}", fmt::join(kEngines, ","));
  cli::CommandLine line("Rounds of federated averaging on MNIST: tutti beside the same in Python, and the limit.",
                        "./bench federated");
  line.option("--engine", engines, "engines to time, with commas between");
  line.option("--rounds", request.rounds, 2, 100000, "of which the first is not timed");
  add_run_options(line, request.run);
  if (!line.parse(arguments)) return false;
  request.engines = parse_names("--engine", engines, kEngines);
  return true;
}

// Looks whether it is there and right, and fetches it where it is not.
void fetch_mnist() {
  if (!std::filesystem::exists(data_folder() / "mnist")) fmt::print(stderr, "bench: fetching MNIST, 11 MB ...\n");
  cli::Signals signals;
  cli::run({.words = {beside("tutti"), "fetch", "mnist"}, .environment = {}}, kFetchPatience, signals);
}

// What is learnt, and how long a round took: of all but the first.
struct Trained {
  double round_seconds = 0;
  double accuracy = 0;
};

// metrics.jsonl has a line for each round, and at the end one for the evaluation.
Trained parse_metrics(const std::string& text, int rounds, int updates) {
  std::vector<double> ends;
  std::optional<double> accuracy;
  for (const std::string_view line : lines_of(text)) {
    const Json its = parse_object(line);
    if (its.contains("updates")) {
      ends.push_back(its.at("seconds"));
      if (its.at("step") != ends.size() || its.at("updates") != updates)
        throw Error(fmt::format("round {} should have {} updates: {}", ends.size(), updates, line));
    } else if (its.contains("test_accuracy")) {
      if (accuracy) throw Error("it evaluated between rounds");
      accuracy = its.at("test_accuracy");
    }
  }
  if (!accuracy || std::ssize(ends) != rounds)
    throw Error(fmt::format("it did not tell {} rounds and an evaluation, but {} rounds", rounds, ends.size()));
  return {.round_seconds = (ends.back() - ends.front()) / (rounds - 1), .accuracy = *accuracy};
}

Trained parse_result(const std::string& text, const std::string& engine, int rounds, int steps_per_round) {
  const Json result = parse_object(text);
  if (result.at("engine") != engine || result.at("rounds") != rounds - 1 ||
      result.at("steps") != (rounds - 1) * steps_per_round)
    throw Error("it measured something else: " + text);
  return {.round_seconds = result.at("seconds").get<double>() / (rounds - 1), .accuracy = result.at("accuracy")};
}

// Of a thousand clients, as the run file has it.
std::vector<std::string> compressions() { return {R"("NoCompression")", R"({"TopK": 0.1})"}; }

TrainCommand tutti_command(const std::filesystem::path& folder, int rounds) {
  return {.run_file = run_file(),
          .output = folder,
          .sets = {"data.source=mnist", fmt::format("graph.strategy.rounds={}", rounds),
                   fmt::format("graph.strategy.threads={}", kThreads), fmt::format("train.evaluate_every={}", rounds)}};
}

std::vector<std::string> peer_words(const std::string& engine, const Task& task, int rounds) {
  std::vector<std::string> words{engine == "python" ? "fedavg.py" : "fedavg_cblas",
                                 "--data",
                                 data_folder() / "mnist",
                                 "--layers",
                                 fmt::format("{}", fmt::join(task.layers, ",")),
                                 "--clients",
                                 std::to_string(task.clients),
                                 "--asked",
                                 std::to_string(task.asked),
                                 "--batch",
                                 std::to_string(task.batch),
                                 "--rate",
                                 fmt::format("{}", task.rate),
                                 "--seed",
                                 std::to_string(task.seed),
                                 "--rounds",
                                 std::to_string(rounds)};
  if (engine == "cblas") words.insert(words.end(), {"--threads", std::to_string(kThreads)});
  return words;
}

Turn rounds_turn(const std::string& engine, const Task& task, int rounds, const std::filesystem::path& scratch,
                 const std::vector<std::string>& environment, FederatedMeasurements& measured) {
  const std::filesystem::path folder = scratch / engine;
  return {.name = fmt::format("{}, {} rounds", engine, rounds),
          .words = engine == "tutti" ? train_words(tutti_command(folder, rounds)) : peer_words(engine, task, rounds),
          .environment = environment,
          .take = [=, &measured](const std::string& text) {
            const Trained trained = engine == "tutti"
                                        ? parse_metrics(text_of(folder / "metrics.jsonl"), rounds, task.asked)
                                        : parse_result(text, engine, rounds, task.steps_per_round());
            std::filesystem::remove_all(folder);
            if (rounds >= kRoundsToLearn && trained.accuracy < kLeastAccuracy)
              throw Error(fmt::format("after {} rounds it tells {:.1f} % of the test images right, expected {:.0f} %",
                                      rounds, 100 * trained.accuracy, 100 * kLeastAccuracy));
            EngineFigures& figures = measured.engines[engine];
            figures.round_seconds.push_back(trained.round_seconds);
            figures.accuracies.push_back(trained.accuracy);
          }};
}

// All clients are asked, one after the other, and all again; where they compress, each keeps what was left out.
Turn many_clients_turn(const std::string& compression, const std::filesystem::path& scratch,
                       const std::vector<std::string>& environment, FederatedMeasurements& measured) {
  const std::filesystem::path folder = scratch / "many-clients";
  TrainCommand command = tutti_command(folder, kRoundsOfMany);
  command.sets.push_back(fmt::format("graph.strategy.num_clients={}", kManyClients));
  command.sets.emplace_back(R"(graph.strategy.client_selection={"method": "All"})");
  command.sets.push_back("graph.strategy.compression=" + compression);
  return {.name = fmt::format("tutti, {} clients, compression {}", kManyClients, compression),
          .words = train_words(command),
          .environment = environment,
          .take =
              [folder](const std::string&) {
                (void)parse_metrics(text_of(folder / "metrics.jsonl"), kRoundsOfMany, kManyClients);
                std::filesystem::remove_all(folder);
              },
          .took = [&peaks = measured.peaks_of_many[compression]](
                      const Spent& spent) { peaks.push_back(spent.peak_memory); }};
}

void print_json(const FederatedMeasurements& measured, const Request& request, const Task& task) {
  for (const std::string& engine : request.engines) {
    const auto found = measured.engines.find(engine);
    if (found == measured.engines.end()) continue;
    const double round_seconds = *measured.round_seconds(engine);
    fmt::print("{}\n", nlohmann::ordered_json{{"engine", engine},
                                              {"rounds", request.rounds},
                                              {"steps_per_second", task.steps_per_round() / round_seconds},
                                              {"rounds_per_second", 1 / round_seconds},
                                              {"accuracy", cli::median(found->second.accuracies)},
                                              {"passes", found->second.accuracies.size()}}
                           .dump());
  }
  for (const auto& [compression, peaks] : measured.peaks_of_many) {
    if (peaks.empty()) continue;
    fmt::print("{}\n", nlohmann::ordered_json{{"engine", "tutti"},
                                              {"clients", kManyClients},
                                              {"compression", nlohmann::ordered_json::parse(compression)},
                                              {"rounds", kRoundsOfMany},
                                              {"peak_bytes", std::ranges::max(peaks).value},
                                              {"passes", peaks.size()}}
                           .dump());
  }
}

void print_table(const FederatedMeasurements& measured, const Request& request, const Task& task) {
  std::vector<std::vector<std::string>> rows{
      {"engine", "local steps/s", "rounds/s", "test accuracy", "tutti's speed over it"}};
  for (const std::string& engine : request.engines) {
    const auto found = measured.engines.find(engine);
    if (found == measured.engines.end()) {
      rows.push_back({engine, "-", "-", "-", "-"});
      continue;
    }
    const double round_seconds = *measured.round_seconds(engine);
    rows.push_back({engine, fmt::format("{:.0f}", task.steps_per_round() / round_seconds),
                    cli::format_figure(1 / round_seconds),
                    fmt::format("{:.2f} %", 100 * cli::median(found->second.accuracies)),
                    ratio_cell(measured.speed_over(engine))});
  }
  fmt::print("MNIST, {} clients with {} rows each, {} of them in a round, {} rows a local step, {}\n", task.clients,
             kTrainingRows / task.clients, task.asked, task.batch, fmt::join(task.layers, "-"));
  fmt::print("(rounds 2 to {}, without start-up and evaluation; test accuracy is after the last)\n", request.rounds);
  print_rows(rows);
  fmt::print("\n");
}

std::vector<Judgement> judge_targets(const FederatedMeasurements& measured) {
  constexpr double kLeastSpeed = 1.7;
  Judgement speed = judge(fmt::format("at least {} times Python's local steps a second", kLeastSpeed),
                          measured.speed_over("python"), kLeastSpeed);
  std::vector<Judgement> judgements{std::move(speed)};
  for (const std::string& compression : compressions()) {
    Judgement memory{fmt::format("{} clients, all asked in each of {} rounds, compression {}, within 1 GB of memory",
                                 kManyClients, kRoundsOfMany, compression),
                     "", false};
    if (const auto found = measured.peaks_of_many.find(compression);
        found != measured.peaks_of_many.end() && !found->second.empty()) {
      const Bytes peak = std::ranges::max(found->second);
      memory.measured = fmt::format("{:.0f} MB", static_cast<double>(peak.value) / 1e6);
      memory.reached = peak.value <= kMostBytes;
    }
    judgements.push_back(std::move(memory));
  }
  return judgements;
}

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  Request request;
  if (!parse_request(arguments, request)) return {};
  const Task task = task_of_run_file();
  fetch_mnist();
  const std::vector<std::string> environment = blas_environment();
  const cli::ScratchFolder scratch;
  FederatedMeasurements measured;
  std::vector<Turn> rounds;
  for (const std::string& engine : request.engines)
    rounds.push_back(rounds_turn(engine, task, request.rounds, scratch.path(), environment, measured));
  std::vector<Turn> many;
  for (const std::string& compression : compressions()) {
    if (request.has("tutti")) many.push_back(many_clients_turn(compression, scratch.path(), environment, measured));
  }
  std::vector<std::string> failures = take_turns({rounds, many}, request.run);
  if (request.run.json) {
    print_json(measured, request, task);
  } else {
    print_table(measured, request, task);
    print_targets("tutti's speed over theirs, and its memory", judge_targets(measured));
  }
  return failures;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
