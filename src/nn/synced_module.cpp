#include <tutti/nn/synced_module.hpp>

#include <tutti/base/error.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>

#include "gradient_buckets.hpp"
#include "kernel_optimizer.hpp"
#include "module_parameters.hpp"
#include "shard_gradients.hpp"

namespace tutti {

SyncedModule::SyncedModule(std::shared_ptr<torch::nn::Module> module, GradientSync& sync)
    : module_(std::move(module)), sync_(sync) {
  if (!module_) throw UsageError("there is no module to train");
  set_up_blas();
  keep_freed_memory();
  std::vector<NamedShape> shapes;
  std::int64_t length = 0;
  std::optional<DataType> type;
  for (const detail::ModuleParameter& one : detail::parameters_of(*module_)) {
    detail::refuse_aliases(one);
    const DataType its = detail::data_type_of_parameter(one.name(), one.tensor());
    if (type.value_or(its) != its) throw UsageError("the parameters are of several types, float32 and float64");
    type = its;
    shapes.push_back({one.name(), one.tensor().sizes().vec()});
    parameters_.push_back(one.tensor());
    length += one.tensor().numel();
  }
  if (parameters_.empty()) throw UsageError("the module has no parameters");
  memory_ = torch::zeros({length}, parameters_.front().options().requires_grad(false));
  gradients_.emplace(std::move(shapes), Array(memory_.data_ptr(), static_cast<std::size_t>(length), *type));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto first = static_cast<std::int64_t>(gradients_->pieces()[i].slice.first);
    views_.push_back(detail::part_of(memory_, first, parameters_[i]));
  }
}

void SyncedModule::backward(const torch::Tensor& loss, std::optional<double> weight) {
  const WeightedLoss weighted(loss, weight.value_or(1));
  const detail::ShardLoss weighed = detail::weigh(weighted, "this worker", 1);
  if (weighed.weight > 0) detail::backward(weighted, weighed.weight);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) {
      views_[i].zero_();
    } else if (gradient.data_ptr() != views_[i].data_ptr()) {
      views_[i].copy_(gradient);
    }
  }
  if (weight) {
    // The mean of weighted gradients is the mean weight times the mean by weight.
    std::vector<double> mean_weight{*weight};
    sync_.sync_exactly(mean_weight);
    if (!(mean_weight[0] > 0))
      throw UsageError("the losses of all workers weigh nothing together, so they have no mean");
    // Before they travel: what a compression keeps for the next round is not weighed by the weights of this one.
    memory_.mul_(1 / mean_weight[0]);
  }
  sync_.sync_buffers(*gradients_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].requires_grad()) parameters_[i].mutable_grad() = views_[i];
  }
}

}  // namespace tutti
