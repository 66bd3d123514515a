#include <algorithm>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/train/footprint.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace tutti {
namespace {

// After some steps malloc has found its way of placing what every step takes.
constexpr int kSteps = 8;

// The inputs of the graph, and the target.
struct TrialRows {
  std::vector<torch::Tensor> inputs;
  torch::Tensor target;
};
std::int64_t row_count(const TrialRows& rows) { return rows.target.size(0); }
template <typename Rows>
TrialRows slice_rows(const TrialRows& all, const Rows& rows) {
  TrialRows result;
  for (const torch::Tensor& input : all.inputs) result.inputs.push_back(rows.of(input));
  result.target = rows.of(all.target);
  return result;
}

// Classes and tokens are 0: there is always one.
torch::Tensor draw(const ValueSpec& spec, std::int64_t rows) {
  const Shape sizes = with_rows(rows, spec.shape);
  return spec.type == ValueType::int64 ? torch::zeros(sizes, torch::kInt64) : torch::randn(sizes);
}

double most_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stod(line.substr(6));
  }
  throw Error("/proc/self/status does not say VmHWM");
}

}  // namespace

double measure_memory(const Run& run) {
  const auto net = std::make_shared<GraphModule>(run.graph, run.seed);
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  const std::unique_ptr<torch::optim::OptimizerOptions> options = torch_options(run.optimizer);
  DataParallelOptions engine{.replicas = parallel == nullptr ? 1 : static_cast<int>(parallel->num_replicas),
                             .clip_norm = run.train.clip_norm,
                             // So that there are updates, and the state of the optimizer, among the steps.
                             .accumulate = static_cast<int>(std::min<std::int64_t>(run.train.accumulate, 2)),
                             .seed = run.seed};
  const auto* method = parallel == nullptr ? nullptr : std::get_if<strategy::AllReduce>(&parallel->aggregation);
  if (method != nullptr) {
    engine.algorithm = method->algorithm;
    engine.compression = method->compression;
    engine.logical_shards = method->logical_shards;
  }
  DataParallel<GraphModule> model(net, net->groups(*options), *options, engine);
  for (int step = 0; step < kSteps; ++step) {
    TrialRows rows;
    for (const GraphInput& input : run.graph.inputs()) rows.inputs.push_back(draw(input.spec, run.data.batch_size));
    rows.target = draw(run.data.opened_by.description.target, run.data.batch_size);
    model.step(rows, [&](GraphModule& module, const TrialRows& mine) {
      return run.loss.compute(module.forward(mine.inputs).front(), mine.target);
    });
  }
  return most_resident_bytes();
}

}  // namespace tutti
