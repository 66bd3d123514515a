#include "gradient_worker.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <type_traits>
#include <utility>

#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/random_draws.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "trained_names.hpp"

namespace tutti::detail {

TrainedParameters trained_parameters(const Run& run, const GraphModule& net) {
  const auto options = torch_options(run.optimizer);
  const auto groups = net.groups(*options);
  const std::set<std::string> names = trained_names(run.graph);
  TrainedParameters trained;
  for (const auto& item : net.named_parameters()) {
    if (!names.contains(item.key())) continue;
    for (const torch::optim::OptimizerParamGroup& group : groups) {
      const auto is_it = [&](const torch::Tensor& tensor) { return tensor.is_same(item.value()); };
      if (std::ranges::none_of(group.params(), is_it)) continue;
      trained.tensors.emplace_back(item.key(), item.value());
      trained.rate_factors.push_back(options->get_lr() > 0 ? group.options().get_lr() / options->get_lr() : 1);
    }
  }
  return trained;
}

ParameterSet values_of(const TrainedParameters& parameters) {
  ParameterSet set;
  for (const auto& [name, tensor] : parameters.tensors) add_tensor(set, name, tensor.detach());
  return set;
}

GradientWorker::GradientWorker(std::shared_ptr<const Run> run, std::shared_ptr<GraphModule> net,
                               std::shared_ptr<const Dataset> rows, const GradientWorkerOptions& options)
    : run_(std::move(run)),
      net_(std::move(net)),
      rows_(std::move(rows)),
      replica_(options.replica),
      shards_(options.shards),
      trained_(trained_parameters(*run_, *net_)),
      sampler_({.rows = rows_->size(),
                .batch_size = run_->data.batch_size,
                .seed = run_->seed,
                .shuffle = run_->data.options.shuffle,
                .drop_last = run_->data.options.drop_last}) {
  keep_buffers();
}

GradientReply GradientWorker::compute(std::int64_t task, const ParameterSet& parameters) {
  const std::int64_t step = task / shards_;
  const auto shard = static_cast<int>(task % shards_);
  const LoaderOptions options{.augment = run_->data.options.augment,
                              .shards = {.first = shard, .count = 1, .of = shards_}};
  const auto began = std::chrono::steady_clock::now();
  const DataBatch batch = load_batch(*rows_, sampler_, options, step);
  const auto loaded = std::chrono::steady_clock::now();
  GradientReply reply = compute_gradients(step, shard, batch, parameters);
  const auto ended = std::chrono::steady_clock::now();
  reply.seconds = std::chrono::duration<double>(ended - began).count();
  reply.spans.push_back({replica_, event::SpanEnded::Kind::data, "load", began, loaded});
  reply.spans.push_back({replica_, event::SpanEnded::Kind::compute, "gradients", loaded, ended});
  return reply;
}

GradientReply GradientWorker::compute_gradients(std::int64_t step, int shard, const DataBatch& batch,
                                                const ParameterSet& parameters) {
  GradientReply reply{.batch_rows = batch.rows_of_all};
  reply.metrics.resize(run_->metrics.size());
  if (batch.numbers.empty()) return reply;
  const DataRows rows = batch.rows_of_shard(shard);
  reply.rows = rows.target.size(0);
  {
    const torch::NoGradGuard no_gradients;
    for (auto& [name, tensor] : trained_.tensors) {
      copy_to_tensor(parameters.at(name), tensor);
      tensor.mutable_grad().reset();
    }
  }
  const RandomDraws draws(
      {.seed = run_->seed, .step = static_cast<std::uint64_t>(step), .shard = static_cast<std::uint64_t>(shard)});
  net_->train();
  const torch::Tensor output = net_->forward(graph_inputs(*run_, rows)).front();
  const WeightedLoss loss = run_->loss.compute(output, rows.target);
  reply.weight = loss.weight.value_or(static_cast<double>(reply.rows));
  const torch::Tensor value = loss.loss;
  if (reply.weight > 0) {
    value.backward(torch::full_like(value, reply.weight));  // sums, as of every trainer
    reply.loss = value.item<double>();
  }
  {
    const torch::NoGradGuard no_gradients;
    for (std::size_t m = 0; m < run_->metrics.size(); ++m)
      reply.metrics[m] = run_->metrics[m].metric.measure(output.detach(), rows.target);
  }
  keep_buffers();
  if (!(reply.weight > 0)) return reply;

  auto gradients = std::make_shared<ParameterSet>();
  double squares = 0;
  for (auto& [name, tensor] : trained_.tensors) {
    const torch::Tensor gradient = tensor.grad().defined() ? tensor.grad() : torch::zeros_like(tensor);
    add_tensor(*gradients, name, gradient);
    tensor.mutable_grad().reset();
    if (run_->train.clip_norm == 0) continue;
    const NamedArray& array = (*gradients)[gradients->size() - 1];
    squares += sum_of_squares(array.type(), array.bytes().data(), array.length());
  }
  double scale = 1 / reply.weight;
  const double norm = std::sqrt(squares) * scale;
  if (run_->train.clip_norm > 0 && norm > run_->train.clip_norm) scale *= run_->train.clip_norm / (norm + 1e-6);
  for (NamedArray& array : *gradients) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        for (T& its : array.values<T>()) its *= static_cast<T>(scale);
      }
    });
  }
  reply.gradients = std::move(gradients);
  return reply;
}

void GradientWorker::keep_buffers() {
  ParameterSet now;
  for (const auto& item : net_->named_buffers()) add_tensor(now, item.key(), item.value());
  const std::lock_guard lock(mutex_);
  buffers_ = std::move(now);
}

ParameterSet GradientWorker::buffers() const {
  const std::lock_guard lock(mutex_);
  return buffers_;
}

void GradientWorker::restore(const ParameterSet& arrays) {
  fill_module(arrays, *net_);
  keep_buffers();
}

}  // namespace tutti::detail
