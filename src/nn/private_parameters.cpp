#include "private_parameters.hpp"

#include <algorithm>
#include <cmath>

#include <tutti/base/error.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/data_parallel.hpp>

namespace tutti::detail {
namespace {

// Of the same kind, with as many groups, over a replica's own variables of the parameters that are private.
std::shared_ptr<torch::optim::Optimizer> like(const torch::optim::Optimizer& optimizer, const Replicas& replicas,
                                              const std::vector<ModuleParameter>& own) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<torch::Tensor> variables;
    for (const torch::Tensor& tensor : group.params()) {
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (replicas.is_private(i) && replicas.tensors()[i].is_same(tensor)) variables.push_back(own[i].tensor());
      }
    }
    groups.emplace_back(variables, group.options().clone());
  }
  return make_optimizer(std::move(groups), optimizer.defaults());
}

}  // namespace

PrivateParameters::PrivateParameters(const Replicas& replicas, std::shared_ptr<torch::optim::Optimizer> optimizer,
                                     const PrivateParametersOptions& options)
    : options_(options) {
  if (!has_kernels(*optimizer)) {
    throw UsageError(
        "is_private: parameters of each replica's own need one of torch's SGD, Adam, AdamW, RMSprop or Adagrad");
  }
  for (std::size_t i = 0; i < replicas.parameters().size(); ++i) {
    if (!replicas.is_private(i)) continue;
    parameters_.push_back(i);
    names_.push_back(replicas.parameters()[i].name());
  }
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    Seat& seat = seats_.emplace_back();
    const std::vector<ModuleParameter>& own =
        r == 0 ? replicas.parameters() : (*(replicas.begin() + static_cast<std::ptrdiff_t>(r))).parameters;
    for (const std::size_t i : parameters_) seat.variables.push_back(own[i].tensor());
    seat.optimizer = r == 0 ? optimizer : like(*optimizer, replicas, own);
    seat.accumulated.resize(parameters_.size());
  }
}

std::string PrivateParameters::look(int worker, const ShardGradients& gradients, double weight) {
  Seat& seat = seats_[at(worker)];
  seat.gradients.assign(parameters_.size(), {});
  seat.weight = weight;
  double squares = 0;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    torch::Tensor& sum = seat.gradients[k];
    sum = gradients.first_of(parameters_[k]);
    if (seat.accumulated[k].defined()) sum = sum.defined() ? sum.add_(seat.accumulated[k]) : seat.accumulated[k];
    if (!sum.defined()) continue;
    const DataType type = data_type_of_parameter(names_[k], sum);
    const auto length = static_cast<std::size_t>(sum.numel());
    if (options_.refuse_nan && !all_finite(type, sum.data_ptr(), length)) return names_[k];
    if (options_.clip_norm > 0) squares += sum_of_squares(type, sum.data_ptr(), length);
  }
  const double whole = seat.accumulated_weight + weight;
  seat.scale = whole > 0 ? 1 / whole : 0;
  const double norm = std::sqrt(squares) * seat.scale;
  if (options_.clip_norm > 0 && norm > options_.clip_norm) seat.scale *= options_.clip_norm / (norm + 1e-6);
  return {};
}

void PrivateParameters::prepare(bool is_update) {
  for (std::size_t w = 0; w < seats_.size(); ++w) {
    Seat& seat = seats_[w];
    seat.accumulated_weight = is_update ? 0 : seat.accumulated_weight + seat.weight;
    seat.accumulated = is_update ? std::vector<torch::Tensor>(parameters_.size()) : seat.gradients;
    if (!is_update) {
      seat.gradients.assign(parameters_.size(), {});
      continue;
    }
    // Schedules change the options of the optimizer that users see.
    if (w > 0) {
      for (std::size_t g = 0; g < seat.optimizer->param_groups().size(); ++g)
        seat.optimizer->param_groups()[g].set_options(seats_.front().optimizer->param_groups()[g].options().clone());
    }
    std::vector<bool> has_gradient;
    for (const torch::Tensor& gradient : seat.gradients) has_gradient.push_back(gradient.defined());
    seat.updates = prepare_updates(*seat.optimizer, seat.variables, has_gradient);
  }
}

void PrivateParameters::update(int worker) {
  Seat& seat = seats_[at(worker)];
  for (std::size_t k = 0; k < seat.gradients.size(); ++k) {
    if (!seat.gradients[k].defined() || !seat.updates[k].is_due) continue;
    detail::update(seat.updates[k], {0, static_cast<std::size_t>(seat.variables[k].numel())},
                   seat.gradients[k].data_ptr(), seat.scale);
  }
  seat.gradients.assign(parameters_.size(), {});
}

void PrivateParameters::forget() {
  for (Seat& seat : seats_) seat.gradients.assign(parameters_.size(), {});
}

}  // namespace tutti::detail
