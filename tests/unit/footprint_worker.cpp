// Trains a run for some steps, on rows drawn at random, and prints how many bytes it had at most.
//
//   footprint_worker run.json
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/train/run.hpp>
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

torch::Tensor draw(const ValueSpec& spec, std::int64_t rows, std::int64_t classes) {
  const Shape sizes = with_rows(rows, spec.shape);
  if (spec.type == ValueType::int64) return torch::randint(0, std::max<std::int64_t>(classes, 1), sizes, torch::kInt64);
  return torch::randn(sizes);
}

// As a program of one's own would.
void train(const Run& run, int steps) {
  auto net = std::make_shared<GraphModule>(run.graph, run.seed);
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  const int replicas = parallel == nullptr ? 1 : static_cast<int>(parallel->num_replicas);
  const auto options = torch_options(run.optimizer);
  DataParallelOptions engine{.replicas = replicas, .clip_norm = run.train.clip_norm};
  if (const auto* method = parallel == nullptr ? nullptr : std::get_if<strategy::AllReduce>(&parallel->aggregation)) {
    engine.algorithm = method->algorithm;
    engine.compression = method->compression;
    engine.logical_shards = method->logical_shards;
  }
  DataParallel<GraphModule> model(net, net->groups(*options), *options, engine);
  using Batch = std::tuple<torch::Tensor, torch::Tensor>;
  const DataDescription& data = run.data.opened_by.description;
  for (int step = 0; step < steps; ++step) {
    const Batch rows{draw(data.inputs.front().second, run.data.batch_size, data.classes),
                     draw(data.target, run.data.batch_size, data.classes)};
    model.step(rows, [&](GraphModule& module, const Batch& mine) {
      return run.loss.compute(module.forward(std::get<0>(mine)), std::get<1>(mine));
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
