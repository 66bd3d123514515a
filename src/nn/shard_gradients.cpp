#include "shard_gradients.hpp"

#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/kernels/fold.hpp>

namespace tutti {

WeightedLoss::WeightedLoss(at::Tensor its_loss, const at::Tensor& its_weight)
    : loss(std::move(its_loss)), weight(its_weight.item<double>()) {}

namespace detail {
namespace {

void add_to(torch::Tensor& sum, const torch::Tensor& gradient) {
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = gradient;
    return;
  }
  const DataType type = sum.scalar_type() == torch::kFloat64 ? DataType::float64 : DataType::float32;
  fold(ReduceOp::sum, type, sum.data_ptr(), sum.data_ptr(), gradient.data_ptr(), static_cast<std::size_t>(sum.numel()));
}

}  // namespace

ShardLoss weigh(const WeightedLoss& loss, const std::string& whose, std::int64_t rows) {
  const auto refuse = [&](const std::string& what) { throw UsageError(fmt::format("{}: {}", whose, what)); };
  if (!loss.loss.defined()) refuse("there is no loss");
  if (loss.loss.numel() != 1) {
    std::ostringstream shape;
    shape << loss.loss.sizes();
    refuse(fmt::format("the loss has the shape {}; expected one number, the mean over its rows", shape.str()));
  }
  const double weight = loss.weight.value_or(static_cast<double>(rows));
  if (!(weight >= 0) || !std::isfinite(weight)) refuse(fmt::format("expected a weight from 0 on, found {}", weight));
  if (weight == 0) return {};
  if (!loss.loss.requires_grad()) refuse("the loss does not depend on any parameter that is trained");
  return {.loss = loss.loss.item<double>(), .weight = weight};
}

void backward(const WeightedLoss& loss, double weight) { loss.loss.backward(torch::full_like(loss.loss, weight)); }

void discard_gradients(const std::vector<ModuleParameter>& parameters) {
  for (const ModuleParameter& parameter : parameters) {
    for (const torch::Tensor& variable : parameter.variables) variable.mutable_grad() = torch::Tensor();
  }
}

std::vector<torch::Tensor> take_gradients(const std::vector<ModuleParameter>& parameters) {
  std::vector<torch::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const ModuleParameter& parameter : parameters) {
    torch::Tensor sum;
    for (const torch::Tensor& variable : parameter.variables) {
      torch::Tensor gradient = variable.grad();
      variable.mutable_grad() = torch::Tensor();
      if (!gradient.defined()) continue;
      if (gradient.is_sparse()) {
        throw UsageError(fmt::format("the gradient of '{}' is sparse; tutti trains with dense ones (sparse(false))",
                                     parameter.name()));
      }
      if (gradient.strides() != variable.strides() || gradient.scalar_type() != variable.scalar_type() ||
          gradient.storage().use_count() > 1) {
        gradient = torch::empty_like(variable, variable.options().requires_grad(false)).copy_(gradient.detach());
      }
      add_to(sum, gradient);
    }
    gradients.push_back(std::move(sum));
  }
  return gradients;
}

void ShardGradients::add(int shard, std::vector<torch::Tensor> gradients) { add({shard, 1, std::move(gradients)}); }

void ShardGradients::append(ShardGradients next) {
  for (Part& part : next.parts_) add(std::move(part));
}

void ShardGradients::add(Part part) {
  parts_.push_back(std::move(part));
  while (parts_.size() > 1) {
    Part& left = parts_[parts_.size() - 2];
    Part& right = parts_.back();
    if (neighbour_in_tree(shards_, left.first, left.count) != right.count) return;
    if (left.gradients.empty()) {
      left.gradients = std::move(right.gradients);
    } else {
      for (std::size_t i = 0; i < right.gradients.size(); ++i) add_to(left.gradients[i], right.gradients[i]);
    }
    left.count += right.count;
    parts_.pop_back();
  }
}

void ShardGradients::append_parts(std::size_t parameter, std::vector<ShardPart>& parts) const {
  for (const Part& part : parts_) {
    const bool is_there = !part.gradients.empty() && part.gradients[parameter].defined();
    parts.push_back({part.first, part.count, is_there ? part.gradients[parameter].data_ptr() : nullptr});
  }
}

torch::Tensor ShardGradients::gradient(std::size_t part, std::size_t parameter) const {
  return parts_[part].gradients.empty() ? torch::Tensor() : parts_[part].gradients[parameter];
}

torch::Tensor ShardGradients::first_of(std::size_t parameter) const {
  for (const Part& part : parts_) {
    if (!part.gradients.empty() && part.gradients[parameter].defined()) return part.gradients[parameter];
  }
  return {};
}

}  // namespace detail
}  // namespace tutti
