// A network as a graph, with an operator, a loss and data of one's own, trained on two replicas: everything that a run
// file names can be written in C++, and be named in run files then.
#include <cmath>
#include <iostream>
#include <memory>
#include <numeric>
#include <vector>

#include <torch/torch.h>
#include <tutti/graph/graph_module.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace {

using namespace tutti;

// x times a factor that is learnt.
OperatorType scale() {
  return {.name = "scale", .resolve = [](const Options& options, std::span<const ValueSpec> inputs) {
            const double first = options.number("first", {}, 1);
            return Operator{.output = inputs[0],
                            .parameters = {{.name = "factor", .shape = {1}, .initial = initializer::Constant{first}}},
                            .compute = [](const OperatorCall& call) { return call.inputs[0] * call.parameters[0]; }};
          }};
}

// Large mistakes count as much as in l1, small ones as in mse.
LossType huber() {
  return {.name = "huber", .resolve = [](const Options& options, const ValueSpec&, const DataDescription&) {
            const double delta = options.number("delta", {.min = 0, .min_excluded = true}, 1);
            return Loss{[delta](const torch::Tensor& output, const torch::Tensor& target) {
              return torch::huber_loss(output, target, torch::Reduction::Mean, delta);
            }};
          }};
}

// Points of a wave.
DataSourceType wave() {
  return {.name = "wave", .resolve = [](const Options& options) {
            const std::int64_t rows = options.integer("rows", {.min = 2}, 256);
            return DataSource{.description = {.inputs = {{"x", {.shape = {1}}}}, .target = {.shape = {1}}},
                              .open = [rows] {
                                const torch::Tensor x = torch::linspace(-3, 3, rows).unsqueeze(1);
                                const auto all = std::make_shared<TensorDataset>(std::vector{x}, x.sin());
                                return DataSplits{.train = all, .test = all};
                              }};
          }};
}

constexpr const char* kRun = R"({
  "seed": 7,
  "data": {"source": "wave", "rows": 256, "batch_size": 256},
  "graph": {
    "inputs": {"x": [1]},
    "nodes": [
      {"id": "wide",   "op": "linear", "inputs": ["x"], "units": 32},
      {"id": "act",    "op": "tanh",   "inputs": ["wide"]},
      {"id": "narrow", "op": "linear", "inputs": ["act"], "units": 1},
      {"id": "y",      "op": "scale",  "inputs": ["narrow"], "first": 2}],
    "outputs": ["y"],
    "strategy": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}},
  "loss": {"name": "huber", "delta": 0.5},
  "metrics": ["mae"],
  "optimizer": {"name": "adam", "lr": 0.01}})";

}  // namespace

int main() try {
  Registry registry;
  registry.operators.add(scale());
  registry.losses.add(huber());
  registry.data_sources.add(wave());
  const Run run = read_run(JsonDocument::parse(kRun, "the run").root(), registry);

  const DataSplits data = open_data(run);
  const auto net = std::make_shared<GraphModule>(run.graph, run.seed);
  const auto rule = torch_options(run.optimizer);
  DataParallel<GraphModule> model(net, net->groups(*rule), *rule, data_parallel_options(run));
  std::vector<std::int64_t> numbers(256);
  std::iota(numbers.begin(), numbers.end(), 0);
  const DataRows rows = data.train->rows(numbers);
  for (int step = 0; step < 400; ++step) {
    const double loss = model.step(rows, [&](GraphModule& replica, const DataRows& mine) {
      return run.loss.compute(replica.forward(graph_inputs(run, mine)).front(), mine.target);
    });
    if (step % 100 == 0) std::cout << "step " << step << ": loss " << loss << "\n";
  }
  const torch::NoGradGuard no_gradients;
  const MetricSum mae = run.metrics.front().metric.measure(net->forward(rows.inputs.front()), rows.target);
  std::cout << "mean distance to the wave " << mae.sum / mae.count << "\n";
  return mae.sum / mae.count < 0.1 ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
