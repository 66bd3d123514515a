#include <tutti/kernels/optimizer.hpp>

#include <cmath>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "chosen_instructions.hpp"
#include "optimizer_table.hpp"

namespace tutti {
namespace {

const detail::UpdateTable& table() {
#if defined(__x86_64__)
  switch (detail::chosen_instructions()) {
    case detail::Instructions::avx512: return detail::kUpdateAvx512;
    case detail::Instructions::avx2: return detail::kUpdateAvx2;
    case detail::Instructions::baseline: break;
  }
#endif
  return detail::kUpdateBaseline;
}

const detail::UpdateLoops& loops_of(DataType type) {
  if (type == DataType::float32) return table().float32;
  if (type == DataType::float64) return table().float64;
  throw UsageError(fmt::format("an optimizer updates float32 or float64, not {}", to_string(type)));
}

void refuse_below_zero(const char* rule, const char* option, double value) {
  if (!(value >= 0) || !std::isfinite(value))
    throw UsageError(fmt::format("{}: {}: expected a number from 0 on, found {}", rule, option, value));
}

void refuse_outside_one(const char* rule, const char* option, double value) {
  if (!(value >= 0 && value < 1))
    throw UsageError(fmt::format("{}: {}: expected a number from 0 to below 1, found {}", rule, option, value));
}

// --- each rule: its name, what it refuses, its state, and its loop ---

constexpr const char* name_of(const Sgd&) { return "sgd"; }
constexpr const char* name_of(const Adam&) { return "adam"; }
constexpr const char* name_of(const AdamW&) { return "adamw"; }
constexpr const char* name_of(const RmsProp&) { return "rmsprop"; }
constexpr const char* name_of(const Adagrad&) { return "adagrad"; }

void refuse_more(const Sgd& rule) {
  refuse_below_zero("sgd", "momentum", rule.momentum);
  if (rule.nesterov && (rule.momentum <= 0 || rule.dampening != 0))
    throw UsageError("sgd: nesterov: needs a momentum, and no dampening");
}
template <typename Adams>
void refuse_more_of_adam(const Adams& rule) {
  refuse_outside_one(name_of(rule), "beta1", rule.beta1);
  refuse_outside_one(name_of(rule), "beta2", rule.beta2);
  refuse_below_zero(name_of(rule), "eps", rule.eps);
}
void refuse_more(const Adam& rule) { refuse_more_of_adam(rule); }
void refuse_more(const AdamW& rule) { refuse_more_of_adam(rule); }
void refuse_more(const RmsProp& rule) {
  refuse_below_zero("rmsprop", "alpha", rule.alpha);
  refuse_below_zero("rmsprop", "eps", rule.eps);
  refuse_below_zero("rmsprop", "momentum", rule.momentum);
}
void refuse_more(const Adagrad& rule) {
  refuse_below_zero("adagrad", "lr_decay", rule.lr_decay);
  refuse_below_zero("adagrad", "initial_accumulator_value", rule.initial_accumulator_value);
  refuse_below_zero("adagrad", "eps", rule.eps);
}

std::size_t states_of(const Sgd& rule) { return rule.momentum != 0 ? 1 : 0; }
std::size_t states_of(const Adam& rule) { return rule.amsgrad ? 3 : 2; }
std::size_t states_of(const AdamW& rule) { return rule.amsgrad ? 3 : 2; }
std::size_t states_of(const RmsProp& rule) { return 1u + (rule.momentum > 0 ? 1u : 0u) + (rule.centered ? 1u : 0u); }
std::size_t states_of(const Adagrad&) { return 1; }

void run(const Sgd& rule, std::uint64_t step, detail::UpdateLoop loop, const detail::UpdateLoops& loops) {
  loop.lr = rule.lr;
  loop.weight_decay = rule.weight_decay;
  loop.decay1 = rule.momentum;
  loop.share1 = 1 - rule.dampening;
  loop.is_first = step == 1;
  loop.has_momentum = rule.momentum != 0;
  loop.is_nesterov = rule.nesterov;
  loops.sgd(loop);
}

template <typename Adams>
void run_adam(const Adams& rule, std::uint64_t step, detail::UpdateLoop& loop) {
  const auto times = static_cast<double>(step);
  loop.lr = rule.lr / (1 - std::pow(rule.beta1, times));
  loop.decay1 = rule.beta1;
  loop.share1 = 1 - rule.beta1;
  loop.decay2 = rule.beta2;
  loop.share2 = 1 - rule.beta2;
  loop.correction2 = std::sqrt(1 - std::pow(rule.beta2, times));
  loop.eps = rule.eps;
  loop.has_amsgrad = rule.amsgrad;
}
void run(const Adam& rule, std::uint64_t step, detail::UpdateLoop loop, const detail::UpdateLoops& loops) {
  run_adam(rule, step, loop);
  loop.weight_decay = rule.weight_decay;
  loops.adam(loop);
}
void run(const AdamW& rule, std::uint64_t step, detail::UpdateLoop loop, const detail::UpdateLoops& loops) {
  run_adam(rule, step, loop);
  loop.is_decoupled = true;
  loop.weight_decay = 1 - rule.lr * rule.weight_decay;
  loops.adam(loop);
}

void run(const RmsProp& rule, std::uint64_t, detail::UpdateLoop loop, const detail::UpdateLoops& loops) {
  loop.lr = rule.lr;
  loop.weight_decay = rule.weight_decay;
  loop.decay1 = rule.alpha;
  loop.share1 = 1 - rule.alpha;
  loop.decay2 = rule.momentum;
  loop.eps = rule.eps;
  loop.has_momentum = rule.momentum > 0;
  loop.is_centered = rule.centered;
  loops.rmsprop(loop);
}

void run(const Adagrad& rule, std::uint64_t step, detail::UpdateLoop loop, const detail::UpdateLoops& loops) {
  loop.lr = rule.lr / (1 + static_cast<double>(step - 1) * rule.lr_decay);
  loop.weight_decay = rule.weight_decay;
  loop.eps = rule.eps;
  loops.adagrad(loop);
}

}  // namespace

std::string_view to_string(const OptimizerRule& rule) {
  return std::visit([](const auto& its) { return name_of(its); }, rule);
}

void refuse_unless_possible(const OptimizerRule& rule) {
  std::visit(
      [](const auto& its) {
        refuse_below_zero(name_of(its), "lr", its.lr);
        refuse_below_zero(name_of(its), "weight_decay", its.weight_decay);
        refuse_more(its);
      },
      rule);
}

std::size_t state_count(const OptimizerRule& rule) {
  return std::visit([](const auto& its) { return states_of(its); }, rule);
}

double initial_state(const OptimizerRule& rule) {
  const auto* adagrad = std::get_if<Adagrad>(&rule);
  return adagrad == nullptr ? 0 : adagrad->initial_accumulator_value;
}

void update(const OptimizerRule& rule, std::uint64_t step, const UpdateArrays& arrays) {
  refuse_unless_possible(rule);
  if (step == 0) throw UsageError("an optimizer's steps count from 1");
  if (arrays.state.size() != state_count(rule)) {
    throw UsageError(
        fmt::format("{} keeps {} arrays of state, found {}", to_string(rule), state_count(rule), arrays.state.size()));
  }
  const detail::UpdateLoop loop{.parameters = arrays.parameters,
                                .gradients = arrays.gradients,
                                .state = arrays.state.data(),
                                .length = arrays.length,
                                .gradient_scale = arrays.gradient_scale};
  std::visit([&](const auto& its) { run(its, step, loop, loops_of(arrays.type)); }, rule);
}

}  // namespace tutti
