// Trains a run for some steps, as a program of one's own would, and prints how many bytes it had at most.
//
//   footprint_worker run.json
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>
#include <tutti/base/random.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace tutti {
namespace {

std::uint64_t most_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoull(line.substr(6));
  }
  return 0;
}

void train(const Run& run, int steps) {
  const DataSplits data = open_data(run);
  const auto net = std::make_shared<GraphModule>(run.graph, run.seed);
  const auto rule = torch_options(run.optimizer);
  DataParallel<GraphModule> model(net, net->groups(*rule), *rule, data_parallel_options(run));
  RandomStream draws({run.seed});
  for (int step = 0; step < steps; ++step) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t row = 0; row < run.data.batch_size; ++row)
      numbers.push_back(static_cast<std::int64_t>(draws.below(static_cast<std::uint64_t>(data.train->size()))));
    model.step(data.train->rows(numbers), [&](GraphModule& module, const DataRows& mine) {
      const torch::Tensor output = module.forward(graph_inputs(run, mine)).front();
      const torch::NoGradGuard no_gradients;
      for (const RunMetric& metric : run.metrics) (void)metric.metric.measure(output.detach(), mine.target);
      const torch::AutoGradMode with_gradients(true);
      return run.loss.compute(output, mine.target);
    });
  }
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw tutti::UsageError("expected a run file");
    tutti::train(tutti::read_run(tutti::JsonDocument::read_file(argv[1]).root()), 12);
    fmt::print("{}\n", tutti::most_resident_bytes());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "footprint_worker: {}\n", error.what());
    return 1;
  }
}
