// `./bench graph`: what it costs that a network is a graph. The same networks, as graphs and written by hand with
// libtorch, take turns in one process: forward, forward and backward, and a whole step with SGD.
#include <array>
#include <compare>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "graph_models.hpp"
#include "report.hpp"
#include "step_timer.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

constexpr std::array<std::string_view, 3> kPhases{"forward", "backward", "step"};

struct GraphPlace {
  std::string model;
  std::size_t phase = 0;  // of kPhases, each with those before it

  friend std::strong_ordering operator<=>(const GraphPlace&, const GraphPlace&) = default;
};
std::string to_string(const GraphPlace& place) { return fmt::format("{}, {}", place.model, kPhases[place.phase]); }

struct GraphResult {
  std::string engine;  // "tutti" or "libtorch"
  std::string model;
  std::size_t phase = 0;
  int batch = 0;
  cli::Timing timing;

  GraphPlace place() const { return {model, phase}; }
  std::pair<std::string, std::string> column() const { return {engine, ""}; }
};

std::string to_json_line(const GraphResult& result) {
  return nlohmann::ordered_json{{"engine", result.engine},
                                {"model", result.model},
                                {"phase", kPhases[result.phase]},
                                {"batch", result.batch},
                                {"seconds", result.timing.median},
                                {"seconds_p10", result.timing.p10},
                                {"seconds_p90", result.timing.p90},
                                {"repetitions", result.timing.repetitions},
                                {"steps_per_repetition", result.timing.batch}}
      .dump();
}

// So many phases of a step.
StepCalls calls_of(const std::function<torch::Tensor(const torch::Tensor&)>& forward, torch::nn::Module& module,
                   const GraphModel& model, std::size_t phases) {
  const auto optimizer = std::make_shared<torch::optim::SGD>(module.parameters(), 0.01);
  return {.run = [forward, optimizer, parameters = module.parameters(), rows = model.rows,
                  target = model.target.reshape(-1), phases](std::uint64_t steps) mutable {
    for (std::uint64_t i = 0; i < steps; ++i) {
      for (torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      const torch::Tensor output = forward(rows);
      if (phases == 0) continue;
      torch::nn::functional::cross_entropy(output.reshape({-1, output.size(-1)}), target).backward();
      if (phases > 1) optimizer->step();
    }
  }};
}

void measure(const std::string& name, int batch, double seconds, std::vector<GraphResult>& results) {
  GraphModel model = make_graph_model(name, batch);
  const auto graph = std::make_shared<GraphModule>(model.graph, 1);
  const auto forward = [graph](const torch::Tensor& rows) { return graph->forward(rows); };
  for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
    const std::vector<cli::Timing> timings = time_steps(
        seconds, {calls_of(forward, *graph, model, phase), calls_of(model.forward, *model.by_hand, model, phase)});
    for (std::size_t engine = 0; engine < timings.size(); ++engine) {
      results.push_back({.engine = engine == 0 ? "tutti" : "libtorch",
                         .model = name,
                         .phase = phase,
                         .batch = batch,
                         .timing = timings[engine]});
    }
  }
}

void print_table(const std::vector<GraphResult>& results) {
  const Points<GraphResult> points(results);
  std::vector<std::vector<std::string>> rows{{"model", "phase", "tutti", "libtorch", "tutti's time over libtorch's"}};
  std::vector<GraphPlace> places(points.places().begin(), points.places().end());
  for (const GraphPlace& place : places) {
    const std::optional<double> speed = points.speed(place, by("tutti"), by("libtorch"));
    rows.push_back({place.model, std::string(kPhases[place.phase]), time_cell(points.seconds(place, by("tutti"))),
                    time_cell(points.seconds(place, by("libtorch"))), speed ? fmt::format("{:.3f}", 1 / *speed) : "-"});
  }
  fmt::print("float32, one BLAS thread, cross entropy, SGD (backward: with forward; step: with both)\n");
  print_rows(rows);
  fmt::print("\n");
  print_targets(
      "tutti's speed over libtorch's",
      {judge(
          "every model and phase: a graph takes at most 1.03 times the time of the same by hand", places,
          [&](const GraphPlace& place) { return points.speed(place, by("tutti"), by("libtorch")); }, 1 / 1.03)});
}

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  RunOptions options{.passes = 3, .seconds = 0.5};
  std::string models = fmt::format("{}", fmt::join(kGraphModels, ","));
  int batch = 64;
  cli::CommandLine line("Times networks that are graphs beside the same ones written by hand with libtorch.",
                        "./bench graph");
  line.option("--model", models, "networks, with commas between");
  line.option("--batch", batch, 1, 1 << 20, "rows");
  add_run_options(line, options);
  if (!line.parse(arguments)) return {};
  const std::vector<std::string> names = cli::parse_list("--model", models);
  for (const std::string& name : names) (void)cli::parse_choice("--model", name, kGraphModels);
  set_up_blas();
  keep_freed_memory();
  at::set_num_threads(1);
  std::vector<GraphResult> results;
  for (int pass = 0; pass < options.passes; ++pass) {
    for (const std::string& name : names) {
      fmt::print(stderr, "pass {} of {}: {}\n", pass + 1, options.passes, name);
      measure(name, batch, options.seconds, results);
    }
  }
  const std::vector<GraphResult> combined = combine_passes(results);
  if (options.json) {
    for (const GraphResult& result : combined) fmt::print("{}\n", to_json_line(result));
  } else {
    print_table(combined);
  }
  return {};
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
