// Parts of `./bench coordinator` that train examples/fashion_mnist.json: with a replica that is slow, and with replicas
// that take steps alone.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>

#include "coordinator_parts.hpp"
#include "report.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSlowEpochs = 3;
constexpr int kAloneEpochs = 12;
constexpr int kSyncEvery = 50;
constexpr int kReplicas = 2;

std::string run_file() { return beside("fashion_mnist.json").string(); }

using Told = std::map<std::string, std::vector<Json>>;  // by engine, of each pass

Turn turn(const std::string& engine, std::vector<std::string> words, Told& told) {
  words.insert(words.begin(), beside("coordinator_runs").string());
  return {.name = engine,
          .words = std::move(words),
          .environment = blas_environment(),
          .take = [engine, &told](const std::string& text) { told[engine].push_back(parse_object(text)); }};
}

double median_of(const std::vector<Json>& passes, const std::function<double(const Json&)>& f) {
  std::vector<double> values;
  for (const Json& its : passes) values.push_back(f(its));
  return cli::median(values);
}

double gradients_per_second(const Json& its) {
  return kReplicas * its.at("steps").get<double>() / its.at("seconds").get<double>();
}

double last_loss(const Json& its) { return its.at("evaluations").back().at(1); }

// The first evaluation that is no worse; infinite where there is none.
double rows_to(const Json& its, double loss) {
  for (const Json& evaluation : its.at("evaluations")) {
    if (evaluation.at(1).get<double>() <= loss) return evaluation.at(0);
  }
  return std::numeric_limits<double>::infinity();
}

std::optional<double> ratio(double ours, double theirs) {
  return theirs > 0 ? std::optional(ours / theirs) : std::nullopt;
}

}  // namespace

std::vector<std::string> measure_slow(const CoordinatorRequest& request) {
  Told told;
  const auto words = [](const char* consistency) {
    return std::vector<std::string>{"slow", run_file(), consistency, fmt::format("{}", kSlowEpochs)};
  };
  const std::vector<std::string> failures =
      take_turns({{turn("synchronous", words("synchronous"), told), turn("asynchronous", words("asynchronous"), told)}},
                 request.run);
  if (told["synchronous"].empty() || told["asynchronous"].empty()) return failures;
  const double loss = median_of(told["synchronous"], last_loss);
  const auto all_rows = [](const Json& its) { return its.at("evaluations").back().at(0).get<double>(); };
  const double rows = median_of(told["synchronous"], all_rows);
  std::map<std::string, double> speed, rows_needed, pause;
  for (const char* engine : {"synchronous", "asynchronous"}) {
    speed[engine] = median_of(told[engine], gradients_per_second);
    rows_needed[engine] = median_of(told[engine], [&](const Json& its) { return rows_to(its, loss); });
    pause[engine] = median_of(told[engine], [](const Json& its) { return its.at("pause").get<double>(); });
    if (request.run.json) {
      fmt::print("{}\n", Json{{"part", "slow"},
                              {"engine", engine},
                              {"gradients_per_second", speed[engine]},
                              {"loss", median_of(told[engine], last_loss)},
                              {"rows_to_loss", rows_needed[engine]},
                              {"pause_seconds", pause[engine]},
                              {"passes", told[engine].size()}}
                             .dump());
    }
  }
  if (request.run.json) return failures;
  fmt::print("two replicas, of which one sleeps four times as long as it computes for a shard of 128 rows; {} epochs\n",
             kSlowEpochs);
  std::vector<std::vector<std::string>> table{
      {"engine", "gradients in a second", "over synchronous", "rows to its loss", "sleeps for a shard"}};
  for (const char* engine : {"synchronous", "asynchronous"})
    table.push_back({engine, fmt::format("{:.0f}", speed[engine]),
                     ratio_cell(ratio(speed[engine], speed["synchronous"])), fmt::format("{:.0f}", rows_needed[engine]),
                     fmt::format("{:.1f} ms", 1e3 * pause[engine])});
  print_rows(table);
  fmt::print("\n");
  print_targets(
      "gradients in a second, and rows",
      {judge("asynchronous: at least 2 times synchronous", ratio(speed["asynchronous"], speed["synchronous"]), 2),
       judge("asynchronous: the same loss within 10 % more rows", ratio(1.1 * rows, rows_needed["asynchronous"]), 1)});
  return failures;
}

std::vector<std::string> measure_alone(const CoordinatorRequest& request) {
  Told told;
  const auto words = [](int sync_every) {
    return std::vector<std::string>{"sent", run_file(), fmt::format("{}", sync_every), fmt::format("{}", kAloneEpochs)};
  };
  const std::vector<std::string> failures =
      take_turns({{turn("every step", words(1), told), turn("every 50 steps", words(kSyncEvery), told)}}, request.run);
  if (told["every step"].empty() || told["every 50 steps"].empty()) return failures;
  std::map<std::string, double> accuracy, bytes, step_bytes;
  for (const char* engine : {"every step", "every 50 steps"}) {
    accuracy[engine] = median_of(told[engine], [](const Json& its) { return its.at("accuracy").get<double>(); });
    bytes[engine] = median_of(told[engine], [](const Json& its) { return its.at("bytes").get<double>(); });
    step_bytes[engine] = median_of(told[engine], [](const Json& its) { return its.at("step_bytes").get<double>(); });
    if (request.run.json)
      fmt::print("{}\n", Json{{"part", "alone"},
                              {"engine", engine},
                              {"accuracy", accuracy[engine]},
                              {"bytes", bytes[engine]},
                              {"step_bytes", step_bytes[engine]},
                              {"passes", told[engine].size()}}
                             .dump());
  }
  if (request.run.json) return failures;
  fmt::print("two replicas that exchange messages; {} epochs\n", kAloneEpochs);
  const auto share = [](std::map<std::string, double>& sent, const std::string& engine) {
    return fmt::format("{:.1f} MB, 1/{:.1f}", sent[engine] / 1e6, sent["every step"] / sent[engine]);
  };
  std::vector<std::vector<std::string>> table{
      {"they meet", "accuracy", "bytes sent", "gradients and parameters of steps"}};
  for (const char* engine : {"every step", "every 50 steps"})
    table.push_back(
        {engine, fmt::format("{:.2f} %", 100 * accuracy[engine]), share(bytes, engine), share(step_bytes, engine)});
  print_rows(table);
  fmt::print("\n");
  print_targets("accuracy and bytes",
                {judge("every 50 steps: within 1 point of every step",
                       ratio(accuracy["every 50 steps"], accuracy["every step"] - 0.01), 1),
                 judge("every 50 steps: a fiftieth of what steps send",
                       ratio(step_bytes["every step"], kSyncEvery * step_bytes["every 50 steps"]), 1)});
  return failures;
}

}  // namespace tutti::bench
