#include <tutti/nn/parameter_update.hpp>

#include <functional>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/kernels/fold.hpp>
#include <tutti/kernels/inspect.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/sync/slice_plan.hpp>

#include "kernel_optimizer.hpp"
#include "optimizer_state.hpp"
#include "saved_numbers.hpp"

namespace tutti {
namespace {

std::size_t length_of(const torch::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

const std::byte* place_in(const torch::Tensor& tensor, const SlicePiece& piece, DataType type) {
  return static_cast<const std::byte*>(tensor.data_ptr()) + piece.slice.first * size_of(type);
}

}  // namespace

ParameterUpdate::ParameterUpdate(Parameters parameters, std::shared_ptr<torch::optim::Optimizer> optimizer)
    : parameters_(std::move(parameters)), optimizer_(std::move(optimizer)) {
  if (!optimizer_ || !detail::has_kernels(*optimizer_))
    throw UsageError("expected one of torch's SGD, Adam, AdamW, RMSprop and Adagrad");
  for (const auto& [name, tensor] : parameters_) detail::data_type_of_parameter(name, tensor);
}

void ParameterUpdate::take(std::vector<torch::Tensor> sums) {
  sums_ = std::move(sums);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (kept_.empty() || !kept_[i].defined()) continue;
    if (!sums_[i].defined()) {
      sums_[i] = kept_[i];
      continue;
    }
    const DataType type = detail::data_type_of_parameter(parameters_[i].first, parameters_[i].second);
    fold(ReduceOp::sum, type, sums_[i].data_ptr(), kept_[i].data_ptr(), sums_[i].data_ptr(), length_of(sums_[i]));
  }
}

std::string ParameterUpdate::not_finite() const {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (!sums_[i].defined()) continue;
    const DataType type = detail::data_type_of_parameter(parameters_[i].first, parameters_[i].second);
    if (!all_finite(type, sums_[i].data_ptr(), length_of(sums_[i]))) return parameters_[i].first;
  }
  return "";
}

std::vector<double> ParameterUpdate::squares_of(std::size_t parameter) const {
  const auto& [name, tensor] = parameters_[parameter];
  const torch::Tensor& sum = sums_[parameter];
  const DataType type = detail::data_type_of_parameter(name, tensor);
  std::vector<double> squares;
  const std::size_t length = length_of(tensor);
  const SlicePlan plan(std::span(&length, 1), 1);
  for (const SlicePiece& piece : plan.pieces())
    squares.push_back(sum.defined() ? sum_of_squares(type, place_in(sum, piece, type), piece.slice.count) : 0);
  return squares;
}

std::size_t ParameterUpdate::piece_count(const Shape& shape) {
  const auto length = static_cast<std::size_t>(element_count(shape).value_or(0));
  return (length + SlicePlan::kLongest - 1) / SlicePlan::kLongest;
}

void ParameterUpdate::apply(double scale) {
  std::vector<bool> has_gradient;
  std::vector<torch::Tensor> tensors;
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    has_gradient.push_back(sums_[i].defined());
    tensors.push_back(parameters_[i].second);
    lengths.push_back(length_of(parameters_[i].second));
  }
  const std::vector<detail::PreparedUpdate> updates = detail::prepare_updates(*optimizer_, tensors, has_gradient);
  const SlicePlan plan(lengths, 1);
  for (const SlicePiece& piece : plan.pieces()) {
    const detail::PreparedUpdate& prepared = updates[piece.array];
    if (prepared.is_due)
      detail::update(prepared, piece.slice, place_in(sums_[piece.array], piece, prepared.type), scale);
  }
  forget();
  kept_.clear();
}

void ParameterUpdate::keep() {
  kept_ = std::move(sums_);
  forget();
}

void ParameterUpdate::forget() { sums_.clear(); }

void ParameterUpdate::save(ParameterSet& state) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    add_tensor(state, name, tensor);
    detail::add_optimizer(state, "", name, *optimizer_, tensor);
    if (!kept_.empty() && kept_[i].defined()) add_tensor(state, "accumulated/" + name, kept_[i]);
  }
}

void ParameterUpdate::restore(const ParameterSet& state, bool goes_on) {
  std::vector<std::function<void()>> changes;
  std::vector<torch::Tensor> kept(goes_on ? parameters_.size() : 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    const NamedArray& array = state.at(name);
    refuse_unless_fits(array, tensor);
    changes.emplace_back([&array, its = tensor] { copy_to_tensor(array, its); });
    changes.emplace_back([this, its = tensor, fields = detail::optimizer_in(state, "", name, *optimizer_, tensor)] {
      detail::set_optimizer_fields(*optimizer_, its, fields);
    });
    const NamedArray* sum = state.find("accumulated/" + name);
    if (!goes_on || sum == nullptr) continue;
    kept[i] = torch::empty_like(tensor, tensor.options().requires_grad(false));
    copy_to_tensor(*sum, kept[i]);
  }
  for (const std::function<void()>& change : changes) change();
  kept_ = std::move(kept);
}

void save_progress(ParameterSet& state, const UpdateProgress& progress) {
  state.add("train/steps", {}, ConstArray(&progress.steps, 1, DataType::int64));
  if (progress.kept_steps == 0) return;
  state.add("accumulated/steps", {}, ConstArray(&progress.kept_steps, 1, DataType::int64));
  state.add("accumulated/weight", {}, ConstArray(&progress.kept_weight, 1, DataType::float64));
}

UpdateProgress progress_in(const ParameterSet& state) {
  return {.steps = detail::saved_number(state, "train/steps", std::int64_t{0}),
          .kept_steps = detail::saved_number(state, "accumulated/steps", std::int64_t{0}),
          .kept_weight = detail::saved_number(state, "accumulated/weight", 0.0)};
}

}  // namespace tutti
