// `./bench pipeline`: networks cut in two, a worker each on two cores: with eight micro-batches under way, and one
// worker after the other. Beside them one worker that has all of it, and the ideal: the schedule, simulated with the
// times that the stages take while nobody else computes. All take turns in one process.
#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/found_partitions.hpp>
#include <tutti/train/node_costs.hpp>

#include "cli/arguments.hpp"
#include "cli/command_line.hpp"
#include "report.hpp"
#include "step_timer.hpp"
#include "train/pipeline_plan.hpp"
#include "train/training.hpp"
#include "turns.hpp"

namespace tutti::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kModels{"mlp", "cnn"};
constexpr std::int64_t kMicroBatches = 8;

struct PipelinePlace {
  std::string model;
  friend std::strong_ordering operator<=>(const PipelinePlace&, const PipelinePlace&) = default;
};
std::string to_string(const PipelinePlace& place) { return place.model; }

struct PipelineResult {
  std::string engine;
  std::string model;
  std::int64_t batch = 0;
  cli::Timing timing;

  PipelinePlace place() const { return {model}; }
  std::pair<std::string, std::string> column() const { return {engine, ""}; }
};

std::string to_json_line(const PipelineResult& result) {
  return Json{{"engine", result.engine},
              {"model", result.model},
              {"batch", result.batch},
              {"micro_batches", result.engine == "tutti" || result.engine == "ideal" ? kMicroBatches : 1},
              {"seconds", result.timing.median},
              {"seconds_p10", result.timing.p10},
              {"seconds_p90", result.timing.p90},
              {"repetitions", result.timing.repetitions},
              {"steps_per_repetition", result.timing.batch}}
      .dump();
}

// --- networks ---

class Nodes {
 public:
  std::string add(const std::string& op, const std::vector<std::string>& inputs, const Json& options = Json::object()) {
    const std::string id = fmt::format("{}{}", op, nodes_.size());
    Json node{{"id", id}, {"op", op}, {"inputs", inputs}};
    node.update(options);
    nodes_.push_back(std::move(node));
    return id;
  }
  Json graph(const Json& shape, const std::string& output) const {
    return {{"inputs", {{"input", shape}}}, {"nodes", nodes_}, {"outputs", {output}}};
  }

 private:
  Json nodes_ = Json::array();
};

Json mlp_graph() {
  Nodes nodes;
  std::string last = "input";
  for (int block = 0; block < 8; ++block) last = nodes.add("relu", {nodes.add("linear", {last}, {{"units", 512}})});
  return nodes.graph({512}, nodes.add("linear", {last}, {{"units", 10}}));
}

// What the first blocks compute is added again far behind them.
Json cnn_graph() {
  Nodes nodes;
  const Json conv{{"filters", 16}, {"kernel", 3}, {"padding", 1}};
  std::vector<std::string> values{nodes.add("relu", {nodes.add("conv2d", {"input"}, conv)})};
  for (int block = 1; block < 8; ++block) {
    std::string value = nodes.add("conv2d", {values.back()}, conv);
    if (block >= 4) value = nodes.add("add", {value, values[static_cast<std::size_t>(7 - block)]});
    values.push_back(nodes.add("relu", {value}));
  }
  return nodes.graph({1, 28, 28}, nodes.add("linear", {nodes.add("flatten", {values.back()})}, {{"units", 10}}));
}

struct PipelineModel {
  Json graph;
  Shape shape;
  std::int64_t batch = 0;
};

PipelineModel model_of(const std::string& name) {
  if (name == "mlp") return {.graph = mlp_graph(), .shape = {512}, .batch = 512};
  return {.graph = cnn_graph(), .shape = {1, 28, 28}, .batch = 64};
}

Registry registry_of(const Shape& shape) {
  Registry registry;
  registry.data_sources.add(
      {.name = "random", .resolve = [shape](const Options&) {
         const auto open = [shape] {
           constexpr std::int64_t kRows = 2048;
           std::vector<std::int64_t> sizes{kRows};
           sizes.insert(sizes.end(), shape.begin(), shape.end());
           torch::manual_seed(1);
           return DataSplits{
               .train = std::make_shared<TensorDataset>(std::vector{torch::randn(sizes)}, torch::randint(10, {kRows}))};
         };
         const ValueSpec kind{.shape = {}, .type = ValueType::int64};
         return DataSource{.description = {.inputs = {{"input", {.shape = shape}}}, .target = kind, .classes = 10},
                           .open = open};
       }});
  return registry;
}

Run run_of(const PipelineModel& model, std::int64_t batch, const Json& strategy) {
  Json document{{"seed", 1},
                {"data", {{"source", "random"}, {"batch_size", batch}}},
                {"graph", model.graph},
                {"loss", "cross_entropy"},
                {"optimizer", {{"name", "sgd"}, {"lr", 0.01}, {"momentum", 0.9}}},
                {"train", {{"epochs", 1'000'000}}}};
  document["graph"]["strategy"] = strategy;
  return read_run(JsonDocument::parse(document.dump(), "run").root(), registry_of(model.shape));
}

// --- engines ---

// The steps of a run, without evaluations and checkpoints.
class Steps {
 public:
  explicit Steps(const Run& run)
      : training_{.run = std::make_shared<const Run>(run),
                  .data = open_data(run),
                  .events = events_,
                  .options = options_},
        stepper_(tutti::detail::make_stepper(training_)) {
    stepper_->begin(0);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  tutti::StepResult step() { return stepper_->step(/*is_interrupted=*/false); }

 private:
  Events events_;
  TrainOptions options_;
  tutti::detail::Training training_;
  std::unique_ptr<tutti::Stepper> stepper_;
};

// What stages take by themselves: one micro-batch goes through all of them, so that one worker is busy at a time.
class StageTimes {
 public:
  explicit StageTimes(const Run& run)
      : plan_(run), order_(plan_.order(1)), tasks_(order_.size()), updates_(order_.size()) {
    for (std::size_t w = 0; w < order_.size(); ++w) tasks_[w].resize(order_[w].size());
  }

  // A worker does its tasks in their order.
  void add(const std::vector<StepSpan>& spans) {
    std::vector<std::size_t> next(order_.size());
    for (const StepSpan& span : spans) {
      const auto worker = static_cast<std::size_t>(span.replica);
      const double seconds = std::chrono::duration<double>(span.end - span.begin).count();
      if (span.name == "update") updates_[worker].push_back(seconds);
      if (span.name == "forward 0" || span.name == "backward 0") tasks_[worker][next[worker]++].push_back(seconds);
    }
  }

  // Of a step of so many micro-batches, where nothing costs anything but the stages and their updates.
  double ideal(std::int64_t micro_batches) const {
    std::vector<StageCost> costs(plan_.cut().stages.size(), {.forward = 0, .backward = 0});
    double update = 0;
    for (std::size_t w = 0; w < order_.size(); ++w) {
      for (std::size_t t = 0; t < order_[w].size(); ++t) {
        StageCost& cost = costs[order_[w][t].stage];
        (order_[w][t].pass == Pass::forward ? cost.forward : cost.backward) = cli::median(tasks_[w][t]);
      }
      update = std::max(update, cli::median(updates_[w]));
    }
    const WorkOrder order = schedule_work(plan_.stages(), micro_batches, strategy::Schedule::one_f_one_b);
    return forecast_work(plan_.stages(), order, costs).seconds + update;
  }

 private:
  tutti::detail::PipelinePlan plan_;
  WorkOrder order_;
  std::vector<std::vector<std::vector<double>>> tasks_;  // by worker and task
  std::vector<std::vector<double>> updates_;             // by worker
};

StepCalls calls_of(const std::shared_ptr<Steps>& steps) {
  return {.run = [steps](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) (void)steps->step();
  }};
}

// The cut that auto_partition finds, for a model and its micro-batches.
Json found_strategy(const PipelineModel& model) {
  const std::int64_t rows = model.batch / kMicroBatches;
  const Run run = run_of(model, model.batch,
                         {{"type", "ModelParallel"},
                          {"auto_partition", {{"workers", 2}}},
                          {"communication", {{"protocol", "Pipeline"}, {"micro_batch_size", rows}}}});
  const Run found = with_found_partitions(run, measure_node_costs(run, *open_data(run).train));
  return to_json(found.graph.effective_strategy());
}

void measure(const std::string& name, const Json& strategy, double seconds, std::vector<PipelineResult>& results) {
  const PipelineModel model = model_of(name);
  Json direct = strategy;
  direct["communication"] = {{"protocol", "Direct"}};
  const Run alone = run_of(model, model.batch / kMicroBatches, direct);
  const auto stages = std::make_shared<Steps>(alone);
  const auto times = std::make_shared<StageTimes>(alone);
  const std::vector<std::pair<std::string, StepCalls>> engines{
      {"single", calls_of(std::make_shared<Steps>(run_of(model, model.batch, {{"type", "Local"}})))},
      {"tutti", calls_of(std::make_shared<Steps>(run_of(model, model.batch, strategy)))},
      {"direct", calls_of(std::make_shared<Steps>(run_of(model, model.batch, direct)))},
      {"stages", {.run = [stages, times](std::uint64_t count) {
         for (std::uint64_t i = 0; i < count; ++i) times->add(stages->step().spans);
       }}}};
  std::vector<StepCalls> calls;
  for (const auto& [engine, its] : engines) calls.push_back(its);
  const std::vector<cli::Timing> timings = time_steps(seconds, calls);
  for (std::size_t e = 0; e + 1 < engines.size(); ++e)
    results.push_back({.engine = engines[e].first, .model = name, .batch = model.batch, .timing = timings[e]});
  const double ideal = times->ideal(kMicroBatches);
  results.push_back({.engine = "ideal",
                     .model = name,
                     .batch = model.batch,
                     .timing = {.median = ideal,
                                .p10 = ideal,
                                .p90 = ideal,
                                .repetitions = timings.back().repetitions,
                                .batch = timings.back().batch}});
}

void print_table(const std::vector<PipelineResult>& results, const std::map<std::string, Json>& strategies) {
  const Points<PipelineResult> points(results);
  std::vector<std::vector<std::string>> rows{
      {"model", "single", "direct", "tutti", "ideal", "tutti over single", "ideal over tutti", "direct over single"}};
  const std::vector<PipelinePlace> places(points.places().begin(), points.places().end());
  for (const PipelinePlace& place : places) {
    const auto speed = [&](const char* ours, const char* theirs) {
      const std::optional<double> times = points.speed(place, by(ours), by(theirs));
      return times ? fmt::format("{:.3f}", *times) : "-";
    };
    std::vector<std::string> row{place.model};
    for (const char* engine : {"single", "direct", "tutti", "ideal"})
      row.push_back(time_cell(points.seconds(place, by(engine))));
    row.insert(row.end(), {speed("tutti", "single"), speed("tutti", "ideal"), speed("direct", "single")});
    rows.push_back(std::move(row));
    fmt::print("{}: {}\n", place.model, strategies.at(place.model).at("partitions").dump());
  }
  fmt::print("\nfloat32, 2 workers that are threads, {} micro-batches, 1f1b; seconds for a step; SGD with momentum\n",
             kMicroBatches);
  print_rows(rows);
  fmt::print("\n");
  print_targets(
      "speed over another's",
      {judge(
           "every model: at least 0.9 of the ideal's speed", places,
           [&](const PipelinePlace& place) { return points.speed(place, by("tutti"), by("ideal")); }, 0.9),
       judge(
           "a chain, worker after worker: at least 0.95 of one worker's speed", std::vector<PipelinePlace>{{"mlp"}},
           [&](const PipelinePlace& place) { return points.speed(place, by("direct"), by("single")); }, 0.95)});
}

std::vector<std::string> run(const std::vector<std::string>& arguments) {
  RunOptions options{.passes = 3, .seconds = 4};
  std::string models = fmt::format("{}", fmt::join(kModels, ","));
  cli::CommandLine line("Times networks that two workers train together beside one worker, and beside the ideal.",
                        "./bench pipeline");
  line.option("--model", models, "networks, with commas between");
  add_run_options(line, options);
  if (!line.parse(arguments)) return {};
  const std::vector<std::string> names = cli::parse_list("--model", models);
  std::map<std::string, Json> strategies;
  for (const std::string& name : names) {
    (void)cli::parse_choice("--model", name, kModels);
    strategies[name] = found_strategy(model_of(name));
  }
  std::vector<PipelineResult> results;
  for (int pass = 0; pass < options.passes; ++pass) {
    for (const std::string& name : names) {
      fmt::print(stderr, "pass {} of {}: {}\n", pass + 1, options.passes, name);
      measure(name, strategies[name], options.seconds, results);
    }
  }
  const std::vector<PipelineResult> combined = combine_passes(results);
  if (options.json) {
    for (const PipelineResult& result : combined) fmt::print("{}\n", to_json_line(result));
  } else {
    print_table(combined, strategies);
  }
  return {};
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  return tutti::bench::run_suite([&] { return tutti::bench::run({argv + 1, argv + argc}); });
}
