#include "kernel_optimizer.hpp"

#include <algorithm>
#include <sstream>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <tutti/base/error.hpp>
#include <tutti/nn/data_parallel.hpp>

namespace tutti::detail {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

std::byte* memory_of(const torch::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// The state of one parameter, as torch keeps it; `State` is made where it is not there.
template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  std::unique_ptr<OptimizerParamState>& state = optimizer.state()[state_key(parameter)];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// A state that was loaded may be another parameter's.
void refuse_unless_alike(const torch::Tensor& state, const torch::Tensor& parameter) {
  if (!state.defined()) return;
  if (state.sizes() != parameter.sizes() || state.scalar_type() != parameter.scalar_type() ||
      !state.device().is_cpu()) {
    std::ostringstream shapes;
    shapes << c10::toString(state.scalar_type()) << ' ' << state.sizes() << " and the parameter "
           << c10::toString(parameter.scalar_type()) << ' ' << parameter.sizes();
    throw UsageError(fmt::format("the optimizer's state is not that of its parameter: it is {}", shapes.str()));
  }
  if (state.strides() != parameter.strides())
    throw UsageError("the optimizer's state lies otherwise in memory than its parameter");
}

// The state that is there already; null where there is none.
template <typename State>
const State* find_state(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(state_key(parameter));
  return found == optimizer.state().end() ? nullptr : static_cast<const State*>(found->second.get());
}

torch::Tensor zeros(const torch::Tensor& parameter) {
  return torch::zeros_like(parameter, parameter.options().requires_grad(false), at::MemoryFormat::Preserve);
}

// --- each of torch's optimizers: the rule, and where its state is ---

struct TorchSgd {
  static OptimizerRule rule(const OptimizerOptions& options) {
    const auto& its = static_cast<const torch::optim::SGDOptions&>(options);
    return Sgd{.lr = its.lr(),
               .momentum = its.momentum(),
               .dampening = its.dampening(),
               .weight_decay = its.weight_decay(),
               .nesterov = its.nesterov()};
  }
  static void check(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
    const auto* state = find_state<torch::optim::SGDParamState>(optimizer, parameter);
    if (state == nullptr) return;
    refuse_unless_alike(state->momentum_buffer(), parameter);
  }
  static void prepare(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, PreparedUpdate& update) {
    if (state_count(update.rule) == 0) return;
    auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
    // torch has no count here: the first step is the one that finds no buffer.
    update.step = state.momentum_buffer().defined() ? 2 : 1;
    if (!state.momentum_buffer().defined()) state.momentum_buffer(zeros(parameter));
    update.state[0] = memory_of(state.momentum_buffer());
  }
};

template <typename Options, typename State, typename Rule>
struct TorchAdams {
  static OptimizerRule rule(const OptimizerOptions& options) {
    const auto& its = static_cast<const Options&>(options);
    return Rule{.lr = its.lr(),
                .beta1 = std::get<0>(its.betas()),
                .beta2 = std::get<1>(its.betas()),
                .eps = its.eps(),
                .weight_decay = its.weight_decay(),
                .amsgrad = its.amsgrad()};
  }
  static void check(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
    const auto* state = find_state<State>(optimizer, parameter);
    if (state == nullptr) return;
    refuse_unless_alike(state->exp_avg(), parameter);
    refuse_unless_alike(state->exp_avg_sq(), parameter);
    refuse_unless_alike(state->max_exp_avg_sq(), parameter);
  }
  static void prepare(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, PreparedUpdate& update) {
    auto& state = state_of<State>(optimizer, parameter);
    if (!state.exp_avg().defined()) state.exp_avg(zeros(parameter));
    if (!state.exp_avg_sq().defined()) state.exp_avg_sq(zeros(parameter));
    update.state = {memory_of(state.exp_avg()), memory_of(state.exp_avg_sq())};
    if (std::get<Rule>(update.rule).amsgrad) {
      if (!state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(zeros(parameter));
      update.state[2] = memory_of(state.max_exp_avg_sq());
    }
    state.step(state.step() + 1);
    update.step = static_cast<std::uint64_t>(state.step());
  }
};
using TorchAdam = TorchAdams<torch::optim::AdamOptions, torch::optim::AdamParamState, Adam>;
using TorchAdamW = TorchAdams<torch::optim::AdamWOptions, torch::optim::AdamWParamState, AdamW>;

struct TorchRmsProp {
  static OptimizerRule rule(const OptimizerOptions& options) {
    const auto& its = static_cast<const torch::optim::RMSpropOptions&>(options);
    return RmsProp{.lr = its.lr(),
                   .alpha = its.alpha(),
                   .eps = its.eps(),
                   .weight_decay = its.weight_decay(),
                   .momentum = its.momentum(),
                   .centered = its.centered()};
  }
  static void check(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
    const auto* state = find_state<torch::optim::RMSpropParamState>(optimizer, parameter);
    if (state == nullptr) return;
    refuse_unless_alike(state->square_avg(), parameter);
    refuse_unless_alike(state->momentum_buffer(), parameter);
    refuse_unless_alike(state->grad_avg(), parameter);
  }
  static void prepare(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, PreparedUpdate& update) {
    auto& state = state_of<torch::optim::RMSpropParamState>(optimizer, parameter);
    const auto& rule = std::get<RmsProp>(update.rule);
    if (!state.square_avg().defined()) state.square_avg(zeros(parameter));
    std::size_t next = 0;
    update.state[next++] = memory_of(state.square_avg());
    if (rule.momentum > 0) {
      if (!state.momentum_buffer().defined()) state.momentum_buffer(zeros(parameter));
      update.state[next++] = memory_of(state.momentum_buffer());
    }
    if (rule.centered) {
      if (!state.grad_avg().defined()) state.grad_avg(zeros(parameter));
      update.state[next] = memory_of(state.grad_avg());
    }
    state.step(state.step() + 1);
    update.step = static_cast<std::uint64_t>(state.step());
  }
};

struct TorchAdagrad {
  static OptimizerRule rule(const OptimizerOptions& options) {
    const auto& its = static_cast<const torch::optim::AdagradOptions&>(options);
    return Adagrad{.lr = its.lr(),
                   .lr_decay = its.lr_decay(),
                   .weight_decay = its.weight_decay(),
                   .initial_accumulator_value = its.initial_accumulator_value(),
                   .eps = its.eps()};
  }
  static void check(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
    const auto* state = find_state<torch::optim::AdagradParamState>(optimizer, parameter);
    if (state == nullptr) return;
    refuse_unless_alike(state->sum(), parameter);
  }
  static void prepare(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, PreparedUpdate& update) {
    auto& state = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
    // torch makes it with the optimizer; a parameter that came later has none.
    if (!state.sum().defined()) state.sum(zeros(parameter).fill_(initial_state(update.rule)));
    update.state[0] = memory_of(state.sum());
    state.step(state.step() + 1);
    update.step = static_cast<std::uint64_t>(state.step());
  }
};

struct TorchOptimizer {
  const std::type_info& type;
  OptimizerRule (*rule)(const OptimizerOptions&);
  void (*check)(torch::optim::Optimizer&, const torch::Tensor&);
  void (*prepare)(torch::optim::Optimizer&, const torch::Tensor&, PreparedUpdate&);
};

template <typename Optimizer, typename Its>
TorchOptimizer entry() {
  return {typeid(Optimizer), Its::rule, Its::check, Its::prepare};
}

const TorchOptimizer* find(const torch::optim::Optimizer& optimizer) {
  static const std::array known{entry<torch::optim::SGD, TorchSgd>(), entry<torch::optim::Adam, TorchAdam>(),
                                entry<torch::optim::AdamW, TorchAdamW>(), entry<torch::optim::RMSprop, TorchRmsProp>(),
                                entry<torch::optim::Adagrad, TorchAdagrad>()};
  for (const TorchOptimizer& one : known) {
    if (one.type == typeid(optimizer)) return &one;
  }
  return nullptr;
}

}  // namespace

DataType data_type_of_parameter(const std::string& name, const torch::Tensor& parameter) {
  if (parameter.scalar_type() == torch::kFloat32) return DataType::float32;
  if (parameter.scalar_type() == torch::kFloat64) return DataType::float64;
  throw UsageError(fmt::format("the parameter '{}' is {}; tutti trains float32 and float64{}", name,
                               c10::toString(parameter.scalar_type()),
                               parameter.is_floating_point() ? " (for bfloat16 take autocast)" : ""));
}

// Its address as a stream writes it, in a tenth of the time.
std::string state_key(const torch::Tensor& parameter) {
  return fmt::format("{}", static_cast<const void*>(parameter.unsafeGetTensorImpl()));
}

bool has_kernels(const torch::optim::Optimizer& optimizer) { return find(optimizer) != nullptr; }

void refuse_unless_possible(const torch::optim::Optimizer& optimizer) {
  const TorchOptimizer* its = find(optimizer);
  if (its == nullptr) return;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    refuse_unless_possible(its->rule(group.options()));
}

std::vector<PreparedUpdate> prepare_updates(torch::optim::Optimizer& optimizer,
                                            const std::vector<torch::Tensor>& parameters,
                                            const std::vector<bool>& has_gradient) {
  refuse_unless_possible(optimizer);
  const TorchOptimizer& its = *find(optimizer);
  std::unordered_map<const void*, std::size_t> index_of;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (has_gradient[i]) index_of[parameters[i].unsafeGetTensorImpl()] = i;
  }
  std::vector<PreparedUpdate> updates(parameters.size());
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const OptimizerRule rule = its.rule(group.options());
    for (const torch::Tensor& parameter : group.params()) {
      const auto found = index_of.find(parameter.unsafeGetTensorImpl());
      if (found == index_of.end()) continue;
      PreparedUpdate& update = updates[found->second];
      update.is_due = true;
      update.rule = rule;
      update.type = data_type_of_parameter("of the optimizer", parameter);
      update.parameter = memory_of(parameter);
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (updates[i].is_due) its.check(optimizer, parameters[i]);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (updates[i].is_due) its.prepare(optimizer, parameters[i], updates[i]);
  }
  return updates;
}

void update(const PreparedUpdate& prepared, Slice slice, const void* gradient, double gradient_scale) {
  const std::size_t offset = slice.first * size_of(prepared.type);
  std::array<void*, 3> state{};
  const std::size_t states = state_count(prepared.rule);
  for (std::size_t i = 0; i < states; ++i) state[i] = prepared.state[i] + offset;
  tutti::update(prepared.rule, prepared.step,
                {.type = prepared.type,
                 .parameters = prepared.parameter + offset,
                 .gradients = gradient,
                 .state = {state.data(), states},
                 .length = slice.count,
                 .gradient_scale = gradient_scale});
}

void step(torch::optim::Optimizer& optimizer) {
  if (!has_kernels(optimizer)) {
    optimizer.step();
    return;
  }
  std::vector<torch::Tensor> parameters;
  std::vector<bool> has_gradient;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      parameters.push_back(parameter);
      has_gradient.push_back(parameter.grad().defined());
    }
  }
  const std::vector<PreparedUpdate> updates = prepare_updates(optimizer, parameters, has_gradient);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    if (!updates[i].is_due) continue;
    const torch::Tensor gradient = parameters[i].grad().strides() == parameters[i].strides()
                                       ? parameters[i].grad()
                                       : torch::empty_like(parameters[i], parameters[i].options().requires_grad(false))
                                             .copy_(parameters[i].grad());
    update(updates[i], {0, static_cast<std::size_t>(parameters[i].numel())}, gradient.data_ptr(), 1);
  }
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                                        const torch::optim::OptimizerOptions& options) {
  // A tied parameter comes once, or it would be updated twice.
  std::vector<const void*> seen;
  for (torch::optim::OptimizerParamGroup& group : groups) {
    std::erase_if(group.params(), [&](const torch::Tensor& parameter) {
      const void* place = parameter.defined() && parameter.numel() > 0 ? parameter.data_ptr() : nullptr;
      if (place == nullptr) return false;
      if (std::ranges::find(seen, place) != seen.end()) return true;
      seen.push_back(place);
      return false;
    });
  }
  const auto make = [&]<typename Optimizer, typename Options>(
                        std::type_identity<Optimizer>, const Options* its) -> std::shared_ptr<torch::optim::Optimizer> {
    try {
      return std::make_shared<Optimizer>(std::move(groups), *its);
    } catch (const c10::Error& error) {
      throw UsageError(error.what_without_backtrace());
    }
  };
  namespace optim = torch::optim;
  if (const auto* its = dynamic_cast<const optim::SGDOptions*>(&options))
    return make(std::type_identity<optim::SGD>(), its);
  if (const auto* its = dynamic_cast<const optim::AdamOptions*>(&options))
    return make(std::type_identity<optim::Adam>(), its);
  if (const auto* its = dynamic_cast<const optim::AdamWOptions*>(&options))
    return make(std::type_identity<optim::AdamW>(), its);
  if (const auto* its = dynamic_cast<const optim::RMSpropOptions*>(&options))
    return make(std::type_identity<optim::RMSprop>(), its);
  if (const auto* its = dynamic_cast<const optim::AdagradOptions*>(&options))
    return make(std::type_identity<optim::Adagrad>(), its);
  throw UsageError(
      "these optimizer options are none of SGD's, Adam's, AdamW's, RMSprop's or Adagrad's; give the optimizer "
      "itself");
}

}  // namespace tutti::detail
