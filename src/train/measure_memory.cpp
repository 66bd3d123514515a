#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <tutti/graph/graph_module.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace tutti {
namespace {

// After some steps malloc has found its way of placing what every step takes. Where steps take long they are large, and
// the first ones tell.
constexpr int kSteps = 16;
constexpr int kLeastSteps = 2;
constexpr std::chrono::seconds kLongEnough{10};

double most_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stod(line.substr(6));
  }
  throw Error("/proc/self/status does not say VmHWM");
}

}  // namespace

double measure_memory(const Run& run) {
  const DataSplits data = open_data(run);
  const auto net = std::make_shared<GraphModule>(run.graph, run.seed);
  const std::unique_ptr<torch::optim::OptimizerOptions> rule = torch_options(run.optimizer);
  DataParallelOptions options = data_parallel_options(run);
  // So that there are updates, and the state of the optimizer, among the steps.
  options.accumulate = std::min(options.accumulate, kLeastSteps);
  DataParallel<GraphModule> model(net, net->groups(*rule), *rule, options);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(run.data.batch_size, data.train->size())));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < kSteps; ++step) {
    if (step >= kLeastSteps && std::chrono::steady_clock::now() - begin > kLongEnough) break;
    model.step(data.train->rows(numbers), [&](GraphModule& module, const DataRows& mine) {
      return run.loss.compute(module.forward(graph_inputs(run, mine)).front(), mine.target);
    });
  }
  return most_resident_bytes();
}

}  // namespace tutti
