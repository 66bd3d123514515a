#include <tutti/train/node_costs.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <tutti/graph/cut.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/parameter_update.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;
using torch::autograd::variable_list;

// The first pass finds memory and caches cold. Where passes take long they are even, and few of them tell.
constexpr int kMostCostPasses = 15;
constexpr int kLeastCostPasses = 3;
constexpr std::chrono::seconds kPassesTakeLong{2};

template <typename F>
double seconds_of(const F& f) {
  const Clock::time_point began = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

class Measuring {
 public:
  Measuring(const Run& run, const DataRows& rows)
      : run_(run),
        module_(run.graph, run.seed),
        has_gradient_(values_with_gradient(run.graph)),
        target_(rows.target),
        inputs_(graph_inputs(run, rows)) {}

  // One pass, forward and backward; node by node, each by itself.
  void pass(std::vector<NodeCost>& costs) {
    const std::size_t inputs = inputs_.size();
    const std::size_t nodes = run_.graph.nodes().size();
    const RandomDraws draws({.seed = run_.seed});
    GraphPass pass;
    pass.values.resize(inputs + nodes);
    for (std::size_t i = 0; i < inputs; ++i) pass.values[i].whole = inputs_[i];
    std::vector<torch::Tensor> outputs(nodes);
    for (std::size_t n = 0; n < nodes; ++n) {
      costs[n].forward = seconds_of([&] { module_.compute(std::span(&n, 1), pass); });
      torch::Tensor& value = pass.values[inputs + n].whole;
      outputs[n] = value;
      value = value.detach();
      if (has_gradient_[inputs + n]) value.requires_grad_();
      pass.values[inputs + n].copies.clear();
    }
    const std::size_t last = run_.graph.outputs().front().value;
    torch::Tensor loss;
    costs[last - inputs].forward +=
        seconds_of([&] { loss = run_.loss.compute(pass.values[last].whole, target_).loss; });
    if (loss.requires_grad()) {
      costs[last - inputs].backward =
          seconds_of([&] { (void)torch::autograd::grad({loss}, {pass.values[last].whole}, {}, false, false, true); });
    }
    for (std::size_t n = nodes; n-- > 0;) {
      costs[n].backward += backward(run_.graph.nodes()[n], pass, std::exchange(outputs[n], {}));
    }
  }

  // Of an element of a parameter.
  double update() {
    ParameterUpdate::Parameters parameters;
    std::vector<torch::Tensor> gradients;
    double elements = 0;
    for (std::size_t i = 0; i < run_.graph.parameters().size(); ++i) {
      const torch::Tensor& parameter = module_.parameters_by_number()[i];
      if (run_.graph.parameters()[i].is_frozen || !parameter.defined()) continue;
      parameters.emplace_back(run_.graph.parameters()[i].path, parameter);
      gradients.push_back(torch::zeros_like(parameter.detach()));
      elements += static_cast<double>(parameter.numel());
    }
    if (elements == 0) return 0;
    const std::unique_ptr<torch::optim::OptimizerOptions> rule = torch_options(run_.optimizer);
    ParameterUpdate update(std::move(parameters), detail::make_optimizer(module_.groups(*rule), *rule));
    std::vector<double> seconds;
    for (int i = 0; i < kLeastCostPasses; ++i) {
      update.take(gradients);
      seconds.push_back(seconds_of([&] { update.apply(1); }));
    }
    return median(seconds) / elements;
  }

 private:
  double backward(const GraphNode& node, const GraphPass& pass, const torch::Tensor& output) const {
    if (!output.requires_grad()) return 0;
    variable_list wanted;
    for (const std::size_t value : node.inputs) {
      if (has_gradient_[value] && pass.values[value].whole.requires_grad()) wanted.push_back(pass.values[value].whole);
    }
    for (const std::size_t parameter : node.parameters) {
      if (!run_.graph.parameters()[parameter].is_frozen) wanted.push_back(module_.parameters_by_number()[parameter]);
    }
    if (wanted.empty()) return 0;
    const variable_list given{torch::ones_like(output)};
    return seconds_of([&] { (void)torch::autograd::grad({output}, wanted, given, false, false, true); });
  }

  const Run& run_;
  GraphModule module_;
  std::vector<bool> has_gradient_;  // by value
  torch::Tensor target_;
  std::vector<torch::Tensor> inputs_;
};

std::int64_t rows_of_micro_batch(const Run& run) {
  const auto* cut = std::get_if<strategy::ModelParallel>(&run.graph.effective_strategy());
  const auto* pipeline = cut == nullptr ? nullptr : std::get_if<strategy::Pipeline>(&cut->communication);
  return pipeline == nullptr ? run.data.batch_size : std::min(run.data.batch_size, pipeline->micro_batch_size);
}

}  // namespace

NodeCosts measure_node_costs(const Run& run, const Dataset& data) {
  set_up_blas();
  keep_freed_memory();
  const OneThread one_thread;
  NodeCosts costs{.rows = std::min(rows_of_micro_batch(run), data.size())};
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(costs.rows));
  std::iota(numbers.begin(), numbers.end(), 0);
  Measuring measuring(run, data.rows(numbers));
  const std::size_t nodes = run.graph.nodes().size();
  std::vector<std::vector<NodeCost>> passes;
  std::vector<NodeCost> cold(nodes);
  const Clock::time_point began = Clock::now();
  measuring.pass(cold);
  for (int i = 0; i < kMostCostPasses; ++i) {
    if (i >= kLeastCostPasses && Clock::now() - began > kPassesTakeLong) break;
    measuring.pass(passes.emplace_back(nodes));
  }
  for (std::size_t n = 0; n < nodes; ++n) {
    const auto median_of = [&](double NodeCost::*part) {
      std::vector<double> seconds;
      for (const std::vector<NodeCost>& pass : passes) seconds.push_back(pass[n].*part);
      return median(std::move(seconds));
    };
    costs.nodes.push_back({median_of(&NodeCost::forward), median_of(&NodeCost::backward)});
  }
  costs.update_of_element = measuring.update();
  return costs;
}

}  // namespace tutti
