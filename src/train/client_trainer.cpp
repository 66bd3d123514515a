#include "client_trainer.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>

#include <tutti/base/random.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "private_names.hpp"
#include "shard_metrics.hpp"

namespace tutti::detail {
namespace {

constexpr std::uint64_t kReplicaDraws = 0x9e911ca;

OptimizerRule with_rate_times(OptimizerRule rule, double factor) {
  std::visit([&](auto& its) { its.lr *= factor; }, rule);
  return rule;
}

DataType type_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? DataType::float64 : DataType::float32;
}

// It stays on the client: the server has none that it could be near to.
bool is_personal(const Run& run, const GraphModule& net, const torch::Tensor& parameter) {
  const auto is_private = private_names(run.graph);
  if (!is_private) return false;
  const auto parameters = net.named_parameters();
  return std::ranges::any_of(
      parameters, [&](const auto& item) { return item.value().is_same(parameter) && is_private(item.key()); });
}

// --- one worker ---

class OneWorker final : public ClientTrainer {
 public:
  OneWorker(std::shared_ptr<const Run> run, std::shared_ptr<GraphModule> net)
      : run_(std::move(run)), net_(std::move(net)) {
    // Each group of clients may have a rate of its own, so here it is 1.
    const auto options = torch_options(run_->optimizer);
    options->set_lr(1);
    for (const torch::optim::OptimizerParamGroup& group : net_->groups(*options)) {
      for (const torch::Tensor& tensor : group.params())
        trained_.push_back({.tensor = tensor,
                            .lr_factor = group.options().get_lr(),
                            .is_personal = is_personal(*run_, *net_, tensor)});
    }
  }

  void begin(const ClientFit& fit) override {
    fit_ = fit;
    step_ = 0;
    const torch::NoGradGuard no_gradients;
    for (Trained& its : trained_) {
      its.state.resize(state_count(fit.rule));
      for (torch::Tensor& state : its.state) state = torch::full_like(its.tensor, initial_state(fit.rule));
      its.at_first = fit.mu > 0 && !its.is_personal ? its.tensor.detach().clone() : torch::Tensor();
      its.tensor.mutable_grad().reset();
    }
  }

  ClientStepNumbers step(const DataRows& rows, double rate_factor) override {
    const RandomDraws draws({.seed = run_->seed,
                             .step = (static_cast<std::uint64_t>(fit_.draw) << 32) + step_,
                             .shard = static_cast<std::uint64_t>(fit_.client)});
    const torch::Tensor output = net_->forward(graph_inputs(*run_, rows)).front();
    const WeightedLoss its = run_->loss.compute(output, rows.target);
    ClientStepNumbers numbers{.weight = its.weight.value_or(static_cast<double>(rows.target.size(0)))};
    if (numbers.weight > 0) {
      its.loss.backward();
      numbers.loss = its.loss.item<double>();
    }
    {
      const torch::NoGradGuard no_gradients;
      for (const RunMetric& metric : run_->metrics)
        numbers.metrics.push_back(metric.metric.measure(output.detach(), rows.target));
    }
    update_all(with_rate_times(fit_.rule, rate_factor), ++step_);
    return numbers;
  }

 private:
  // A parameter, with what an optimizer keeps of it.
  struct Trained {
    torch::Tensor tensor;
    double lr_factor = 1;
    bool is_personal = false;
    std::vector<torch::Tensor> state = {};
    torch::Tensor at_first = {};  // of FedProx: what the server gave, of what it gives
  };

  // By their gradients, which are gone then.
  void update_all(const OptimizerRule& rule, std::uint64_t step) {
    const torch::NoGradGuard no_gradients;
    const double clip_norm = run_->train.clip_norm;
    double squares = 0;
    for (Trained& its : trained_) {
      torch::Tensor& gradient = its.tensor.mutable_grad();
      if (!gradient.defined()) continue;
      gradient = gradient.contiguous();
      if (its.at_first.defined()) gradient.add_(its.tensor - its.at_first, fit_.mu);
      if (clip_norm > 0)
        squares += sum_of_squares(type_of(gradient), gradient.data_ptr(), static_cast<std::size_t>(gradient.numel()));
    }
    const double norm = std::sqrt(squares);
    const double scale = clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1;
    for (Trained& its : trained_) {
      torch::Tensor& gradient = its.tensor.mutable_grad();
      if (!gradient.defined()) continue;
      std::vector<void*> state;
      for (const torch::Tensor& one : its.state) state.push_back(one.data_ptr());
      update(its.lr_factor == 1 ? rule : with_rate_times(rule, its.lr_factor), step,
             {.type = type_of(gradient),
              .parameters = its.tensor.data_ptr(),
              .gradients = gradient.data_ptr(),
              .state = state,
              .length = static_cast<std::size_t>(gradient.numel()),
              .gradient_scale = scale});
      gradient.reset();
    }
  }

  std::shared_ptr<const Run> run_;
  std::shared_ptr<GraphModule> net_;
  std::vector<Trained> trained_;
  ClientFit fit_;
  std::uint64_t step_ = 0;
};

// --- replicas ---

// Of a batch, which DataParallel deals out row by row: the first row of a shard is its number.
struct WholeBatch {
  DataRows rows;
};
[[maybe_unused]] std::int64_t row_count(const WholeBatch& batch) { return tutti::row_count(batch.rows); }
[[maybe_unused]] ShardRows slice_rows(const WholeBatch& batch, const Rows& rows) {
  return {tutti::slice_rows(batch.rows, rows), static_cast<int>(rows.first)};
}

class Replicas final : public ClientTrainer {
 public:
  Replicas(std::shared_ptr<const Run> run, std::shared_ptr<GraphModule> net, DataParallelOptions options)
      : run_(std::move(run)), net_(std::move(net)), options_(std::move(options)) {}

  void begin(const ClientFit& fit) override {
    model_.reset();
    const std::unique_ptr<torch::optim::OptimizerOptions> rule = torch_options(fit.rule);
    DataParallelOptions options = options_;
    options.seed = RandomStream(
        {run_->seed, kReplicaDraws, static_cast<std::uint64_t>(fit.client), static_cast<std::uint64_t>(fit.draw)})();
    model_.emplace(net_, net_->groups(*rule), *rule, options);
    mu_ = fit.mu;
    at_first_.clear();
    rates_.clear();
    for (const torch::optim::OptimizerParamGroup& group : model_->optimizer().param_groups())
      rates_.push_back(group.options().get_lr());
    if (mu_ > 0) {
      for (const torch::Tensor& parameter : net_->parameters())
        at_first_.push_back(is_personal(*run_, *net_, parameter) ? torch::Tensor() : parameter.detach().clone());
    }
  }

  ClientStepNumbers step(const DataRows& rows, double rate_factor) override {
    std::vector<torch::optim::OptimizerParamGroup>& groups = model_->optimizer().param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates_[i] * rate_factor);
    const auto shards = static_cast<std::size_t>(model_->own_shards().of);
    const auto metrics = std::make_shared<ShardMetrics>(shards, run_->metrics.size());
    (void)model_->step(WholeBatch{rows}, [run = run_, metrics, mu = mu_, at_first = at_first_](GraphModule& module,
                                                                                               const ShardRows& mine) {
      const torch::Tensor output = module.forward(graph_inputs(*run, mine.rows)).front();
      metrics->measure(*run, mine.shard, output.detach(), mine.rows.target);
      WeightedLoss its = run->loss.compute(output, mine.rows.target);
      if (mu > 0) its.loss = its.loss + proximal_term(module, at_first, mu);
      return its;
    });
    ClientStepNumbers numbers{.loss = model_->report().loss, .weight = model_->report().weight};
    for (std::size_t m = 0; m < run_->metrics.size(); ++m) numbers.metrics.push_back(metrics->total(m));
    return numbers;
  }

 private:
  // Its gradient is mu (parameters - those of the server); its value is 0, so that the loss stays the data's.
  static torch::Tensor proximal_term(const GraphModule& module, const std::vector<torch::Tensor>& at_first, double mu) {
    torch::Tensor term = torch::zeros({});
    const std::vector<torch::Tensor> parameters = module.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].requires_grad() && at_first[i].defined())
        term = term + mu / 2 * (parameters[i] - at_first[i]).square().sum();
    }
    return term - term.detach();
  }

  std::shared_ptr<const Run> run_;
  std::shared_ptr<GraphModule> net_;
  DataParallelOptions options_;
  std::optional<DataParallel<GraphModule>> model_;  // of a fit
  double mu_ = 0;
  std::vector<torch::Tensor> at_first_;  // of what the server gives
  std::vector<double> rates_;            // of each group of parameters
};

}  // namespace

std::unique_ptr<ClientTrainer> make_client_trainer(std::shared_ptr<const Run> run, std::shared_ptr<GraphModule> net) {
  const auto& federated = std::get<strategy::Federated>(run->graph.effective_strategy());
  const auto* parallel = std::get_if<strategy::DataParallel>(&federated.inner);
  if (parallel == nullptr) return std::make_unique<OneWorker>(std::move(run), std::move(net));
  DataParallelOptions options = data_parallel_options(*run, *parallel);
  options.refuse_nan = false;  // the server looks at what comes of them, as it does of one worker's
  return std::make_unique<Replicas>(std::move(run), std::move(net), std::move(options));
}

}  // namespace tutti::detail
