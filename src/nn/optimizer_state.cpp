#include "optimizer_state.hpp"

#include <functional>
#include <typeinfo>

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <tutti/base/error.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "kernel_optimizer.hpp"

namespace tutti::detail {
namespace {

using torch::optim::OptimizerParamState;

constexpr const char* kStep = "step";

// How torch keeps the state of a kind of optimizer: tensors by name, most of them beside a count of steps.
template <typename State>
struct TensorField {
  const char* name;
  torch::Tensor& (State::*get)() noexcept;
};

class StateKind {
 public:
  virtual ~StateKind() = default;
  virtual bool is_of(const torch::optim::Optimizer& optimizer) const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<OptimizerField> read(OptimizerParamState& state) const = 0;
  virtual std::unique_ptr<OptimizerParamState> make(const torch::Tensor& parameter,
                                                    const std::vector<OptimizerField>& fields) const = 0;
};

template <typename Optimizer, typename State, bool kCountsSteps>
class StateOf final : public StateKind {
 public:
  explicit StateOf(std::vector<TensorField<State>> fields) : fields_(std::move(fields)) {}

  bool is_of(const torch::optim::Optimizer& optimizer) const override { return typeid(optimizer) == typeid(Optimizer); }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const TensorField<State>& field : fields_) names.emplace_back(field.name);
    if (kCountsSteps) names.emplace_back(kStep);
    return names;
  }

  std::vector<OptimizerField> read(OptimizerParamState& state) const override {
    auto& its = static_cast<State&>(state);
    std::vector<OptimizerField> fields;
    for (const TensorField<State>& field : fields_) {
      const torch::Tensor& tensor = (its.*field.get)();
      if (tensor.defined()) fields.push_back({field.name, tensor});
    }
    if constexpr (kCountsSteps) fields.push_back({kStep, torch::full({}, its.step(), torch::kLong)});
    return fields;
  }

  std::unique_ptr<OptimizerParamState> make(const torch::Tensor& parameter,
                                            const std::vector<OptimizerField>& given) const override {
    auto state = std::make_unique<State>();
    for (const OptimizerField& one : given) {
      if constexpr (kCountsSteps) {
        if (one.name == kStep) state->step(one.tensor.item<std::int64_t>());
      }
      for (const TensorField<State>& field : fields_) {
        if (one.name == field.name)
          ((*state).*field.get)() =
              torch::empty_like(parameter, parameter.options().requires_grad(false), at::MemoryFormat::Preserve)
                  .copy_(one.tensor);
      }
    }
    return state;
  }

 private:
  std::vector<TensorField<State>> fields_;
};

const StateKind& kind_of(const torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  static const StateOf<optim::SGD, optim::SGDParamState, false> sgd(
      {{"momentum_buffer", &optim::SGDParamState::momentum_buffer}});
  static const StateOf<optim::Adam, optim::AdamParamState, true> adam(
      {{"exp_avg", &optim::AdamParamState::exp_avg},
       {"exp_avg_sq", &optim::AdamParamState::exp_avg_sq},
       {"max_exp_avg_sq", &optim::AdamParamState::max_exp_avg_sq}});
  static const StateOf<optim::AdamW, optim::AdamWParamState, true> adamw(
      {{"exp_avg", &optim::AdamWParamState::exp_avg},
       {"exp_avg_sq", &optim::AdamWParamState::exp_avg_sq},
       {"max_exp_avg_sq", &optim::AdamWParamState::max_exp_avg_sq}});
  static const StateOf<optim::RMSprop, optim::RMSpropParamState, true> rmsprop(
      {{"square_avg", &optim::RMSpropParamState::square_avg},
       {"momentum_buffer", &optim::RMSpropParamState::momentum_buffer},
       {"grad_avg", &optim::RMSpropParamState::grad_avg}});
  static const StateOf<optim::Adagrad, optim::AdagradParamState, true> adagrad(
      {{"sum", &optim::AdagradParamState::sum}});
  for (const StateKind* kind : std::initializer_list<const StateKind*>{&sgd, &adam, &adamw, &rmsprop, &adagrad}) {
    if (kind->is_of(optimizer)) return *kind;
  }
  throw UsageError("the state of an optimizer that is none of SGD, Adam, AdamW, RMSprop and Adagrad cannot be kept");
}

}  // namespace

std::vector<OptimizerField> optimizer_fields(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const StateKind& kind = kind_of(optimizer);
  const auto found = optimizer.state().find(state_key(parameter));
  return found == optimizer.state().end() ? std::vector<OptimizerField>() : kind.read(*found->second);
}

std::vector<std::string> optimizer_field_names(const torch::optim::Optimizer& optimizer) {
  return kind_of(optimizer).names();
}

void set_optimizer_fields(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                          const std::vector<OptimizerField>& fields) {
  if (fields.empty()) {
    optimizer.state().erase(state_key(parameter));
    return;
  }
  optimizer.state()[state_key(parameter)] = kind_of(optimizer).make(parameter, fields);
}

void add_optimizer(ParameterSet& state, const std::string& prefix, const std::string& name,
                   torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  for (const OptimizerField& field : optimizer_fields(optimizer, parameter))
    add_tensor(state, fmt::format("{}optimizer/{}/{}", prefix, field.name, name), field.tensor);
}

std::vector<OptimizerField> optimizer_in(const ParameterSet& state, const std::string& prefix, const std::string& name,
                                         const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  std::vector<OptimizerField> fields;
  for (const std::string& field : optimizer_field_names(optimizer)) {
    const NamedArray* array = state.find(fmt::format("{}optimizer/{}/{}", prefix, field, name));
    if (array == nullptr) continue;
    if (!array->shape().empty() || array->type() != DataType::int64) refuse_unless_fits(*array, parameter);
    fields.push_back({field, tensor_of(*array)});
  }
  return fields;
}

}  // namespace tutti::detail
