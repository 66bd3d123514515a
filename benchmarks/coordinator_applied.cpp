// Threads that add gradients as fast as a DistributedGradientsCoordinator takes them; beside it one thread that applies
// them itself, by the same rule. Both take turns in one process, a repetition each.
#include <compare>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/distributed_gradients_coordinator.hpp>

#include "coordinator_parts.hpp"
#include "report.hpp"
#include "step_timer.hpp"

namespace tutti::bench {
namespace {

struct AppliedPlace {
  int producers = 0;
  Bytes bytes;

  friend std::strong_ordering operator<=>(const AppliedPlace&, const AppliedPlace&) = default;
};
std::string to_string(const AppliedPlace& place) {
  return fmt::format("{} from {} producer{}", tutti::to_string(place.bytes), place.producers,
                     place.producers == 1 ? "" : "s");
}

struct AppliedResult {
  std::string engine;  // "tutti" or "loop"
  AppliedPlace at;
  cli::Timing timing;  // of one set of gradients

  AppliedPlace place() const { return at; }
  std::pair<std::string, std::string> column() const { return {engine, ""}; }
};

std::string to_json_line(const AppliedResult& result) {
  return nlohmann::ordered_json{{"part", "applied"},
                                {"engine", result.engine},
                                {"producers", result.at.producers},
                                {"bytes", result.at.bytes.value},
                                {"seconds", result.timing.median},
                                {"seconds_p10", result.timing.p10},
                                {"seconds_p90", result.timing.p90},
                                {"bytes_per_second", static_cast<double>(result.at.bytes.value) / result.timing.median},
                                {"repetitions", result.timing.repetitions},
                                {"steps_per_repetition", result.timing.batch}}
      .dump();
}

constexpr std::uint64_t kSetsInAStep = 8;
const OptimizerRule kRule = Sgd{.lr = 1e-6};

using Gradients = std::vector<std::shared_ptr<const ParameterSet>>;  // of each producer its own

ParameterSet random_set(Bytes bytes, std::uint64_t seed) {
  ParameterSet set;
  set.add({.name = "weight", .shape = {static_cast<std::int64_t>(bytes.value / sizeof(float))}});
  RandomStream draws({seed});
  for (float& value : set[0].values<float>()) value = draws.uniform_float() - 0.5f;
  return set;
}

void add_all(DistributedGradientsCoordinator& coordinator, const Gradients& gradients, std::uint64_t sets) {
  const std::int64_t before = coordinator.version();
  coordinator.start();
  std::vector<std::jthread> producers;
  for (std::size_t producer = 0; producer < gradients.size(); ++producer) {
    producers.emplace_back([&, producer] {
      for (std::uint64_t i = producer; i < sets; i += gradients.size()) coordinator.add_gradients(gradients[producer]);
    });
  }
  producers.clear();
  coordinator.stop();
  if (coordinator.version() != before + static_cast<std::int64_t>(sets))
    throw Error(fmt::format("{} sets of gradients made {} versions", sets, coordinator.version() - before));
}

void measure_place(const AppliedPlace& place, double seconds, std::vector<AppliedResult>& results) {
  Gradients gradients;
  for (int producer = 0; producer < place.producers; ++producer) {
    gradients.push_back(
        std::make_shared<const ParameterSet>(random_set(place.bytes, 1 + static_cast<std::uint64_t>(producer))));
  }
  DistributedGradientsCoordinator coordinator(kRule);
  coordinator.set_model_parameters(random_set(place.bytes, 0));
  ParameterSet parameters = random_set(place.bytes, 0);
  const std::unique_ptr<UpdateRule> rule = make_update_rule(kRule);
  rule->prepare(parameters);
  const std::vector<StepCalls> calls{
      {.run = [&](std::uint64_t steps) { add_all(coordinator, gradients, steps * kSetsInAStep); }},
      {.run = [&](std::uint64_t steps) {
        for (std::uint64_t i = 0; i < steps * kSetsInAStep; ++i)
          rule->apply(parameters, *gradients[i % gradients.size()], {});
      }}};
  const std::vector<cli::Timing> timings = time_steps(seconds, calls);
  for (std::size_t engine = 0; engine < timings.size(); ++engine) {
    cli::Timing timing = timings[engine];
    for (double* of_step : {&timing.median, &timing.p10, &timing.p90}) *of_step /= static_cast<double>(kSetsInAStep);
    results.push_back({.engine = engine == 0 ? "tutti" : "loop", .at = place, .timing = timing});
  }
}

std::string speed_cell(Bytes bytes, std::optional<double> seconds) {
  return seconds ? fmt::format("{:.2f} GB/s", static_cast<double>(bytes.value) / *seconds / 1e9) : "-";
}

void print_table(const std::vector<AppliedResult>& results) {
  const Points<AppliedResult> points(results);
  const auto speed = [&](const AppliedPlace& place) { return points.speed(place, by("tutti"), by("loop")); };
  std::vector<std::vector<std::string>> rows{
      {"producers", "bytes", "tutti", "loop", "tutti", "loop", "tutti over loop"}};
  std::vector<AppliedPlace> large;
  for (const AppliedPlace& place : points.places()) {
    const auto tutti = points.seconds(place, by("tutti"));
    const auto loop = points.seconds(place, by("loop"));
    rows.push_back({std::to_string(place.producers), tutti::to_string(place.bytes), time_cell(tutti), time_cell(loop),
                    speed_cell(place.bytes, tutti), speed_cell(place.bytes, loop), ratio_cell(speed(place))});
    if (place.bytes >= Bytes{std::uint64_t{1} << 20}) large.push_back(place);
  }
  fmt::print("gradients applied: float32, SGD; seconds for a set, and bytes of gradients in a second\n");
  print_rows(rows);
  fmt::print("\n");
  print_targets("speed over the loop's",
                {judge("1 MiB and more, from any number of producers: at least 0.8", large, speed, 0.8)});
}

}  // namespace

std::vector<std::string> measure_applied(const CoordinatorRequest& request) {
  for (const Bytes bytes : request.sizes) {
    if (bytes.value == 0 || bytes.value % sizeof(float) != 0)
      throw UsageError(fmt::format("--bytes: expected a multiple of 4, found {}", bytes.value));
  }
  std::vector<AppliedResult> results;
  for (int pass = 0; pass < request.run.passes; ++pass) {
    for (const Bytes bytes : request.sizes) {
      for (const int producers : request.producers) {
        const AppliedPlace place{producers, bytes};
        fmt::print(stderr, "pass {} of {}: {}\n", pass + 1, request.run.passes, to_string(place));
        measure_place(place, request.run.seconds, results);
      }
    }
  }
  const std::vector<AppliedResult> combined = combine_passes(results);
  if (request.run.json) {
    for (const AppliedResult& result : combined) fmt::print("{}\n", to_json_line(result));
  } else {
    print_table(combined);
  }
  return {};
}

}  // namespace tutti::bench
