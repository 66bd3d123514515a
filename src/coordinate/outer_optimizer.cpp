#include <tutti/coordinate/outer_optimizer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "rounding.hpp"

namespace tutti {

using strategy::FederatedAggregation;

namespace {

// --- numbers ---

// value + step; after a step of 0 what it was, to the bit, be it infinite. Integers take the integer nearest to the
// step, of halves the one farther from 0, and end where their type does: the sum of a large one is not rounded.
template <Element T>
T stepped(T value, double step) {
  if constexpr (std::integral<T>) {
    constexpr auto kMax = std::numeric_limits<T>::max();
    constexpr auto kMin = std::numeric_limits<T>::min();
    const double whole = std::round(step);
    T sum;
    // -kMin is a power of two, and the first whole number that is too large.
    if (!(whole < -static_cast<double>(kMin) && whole >= static_cast<double>(kMin)) ||
        __builtin_add_overflow(value, static_cast<T>(whole), &sum))
      return whole < 0 ? kMin : kMax;
    return sum;
  } else if constexpr (std::floating_point<T>) {
    const auto sum = detail::rounded<T>(static_cast<double>(value) + step);
    return step == 0 ? value : sum;
  } else {
    return step == 0 ? value : detail::rounded<T>(static_cast<double>(value.to_float()) + step);
  }
}

void add_steps(NamedArray& parameter, std::size_t first, std::span<const double> steps) {
  dispatch(parameter.type(), [&]<typename T>(std::type_identity<T>) {
    T* its = parameter.values<T>().data() + first;
    for (std::size_t i = 0; i < steps.size(); ++i) its[i] = stepped(its[i], steps[i]);
  });
}

// --- rules: what becomes of one number of a change ---

// What a rule keeps from step to step, for each number.
template <typename Rule>
constexpr bool kHasMomentum = std::same_as<Rule, strategy::FedAvgM> || std::same_as<Rule, strategy::FedAdam> ||
                              std::same_as<Rule, strategy::FedYogi>;
template <typename Rule>
constexpr bool kHasVariance = std::same_as<Rule, strategy::FedAdam> || std::same_as<Rule, strategy::FedYogi> ||
                              std::same_as<Rule, strategy::FedAdagrad>;

double outer_step(const strategy::FedAvgM& rule, double change, double& momentum, double&) {
  momentum = rule.momentum * momentum + change;
  return rule.lr * (rule.nesterov ? rule.momentum * momentum + change : momentum);
}
double outer_step(const strategy::FedAdam& rule, double change, double& momentum, double& variance) {
  momentum = rule.beta1 * momentum + (1 - rule.beta1) * change;
  variance = rule.beta2 * variance + (1 - rule.beta2) * (change * change);
  return rule.lr * momentum / (std::sqrt(variance) + rule.tau);
}
double outer_step(const strategy::FedYogi& rule, double change, double& momentum, double& variance) {
  const double square = change * change;
  const double sign = variance > square ? 1 : variance < square ? -1 : 0;
  momentum = rule.beta1 * momentum + (1 - rule.beta1) * change;
  variance -= (1 - rule.beta2) * square * sign;
  return rule.lr * momentum / (std::sqrt(variance) + rule.tau);
}
double outer_step(const strategy::FedAdagrad& rule, double change, double&, double& variance) {
  variance += change * change;
  return rule.lr * change / (std::sqrt(variance) + rule.tau);
}

// `momentum` and `variance` are null where the rule has none.
template <typename Rule>
void step_with_moments(const Rule& rule, NamedArray& parameter, std::span<const double> change, double* momentum,
                       double* variance) {
  std::array<double, 4096> block;
  for (std::size_t first = 0; first < change.size(); first += block.size()) {
    const std::span<double> steps = std::span(block).first(std::min(block.size(), change.size() - first));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      double none = 0;
      steps[i] = outer_step(rule, change[first + i], kHasMomentum<Rule> ? momentum[first + i] : none,
                            kHasVariance<Rule> ? variance[first + i] : none);
    }
    add_steps(parameter, first, steps);
  }
}

// --- arrays ---

bool has_moments(const std::vector<bool>& is_trained, const ParameterSet& parameters, std::size_t array) {
  return is_floating(parameters[array].type()) && (is_trained.empty() || is_trained[array]);
}

void refuse_other_count_of_arrays(std::string_view what, std::size_t found, std::size_t expected) {
  if (found != expected) throw UsageError(fmt::format("expected {} of {} arrays, found {}", what, expected, found));
}

void refuse_other_shape(std::string_view what, const Change& found, const ParameterSet& parameters) {
  refuse_other_count_of_arrays(what, found.size(), parameters.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].size() != parameters[i].length()) {
      throw UsageError(fmt::format("\"{}\": expected {} of {} numbers, found {}", parameters[i].name(), what,
                                   parameters[i].length(), found[i].size()));
    }
  }
}

// One for each number of an array that has some.
Change new_moments(const std::vector<bool>& is_trained, const ParameterSet& parameters, double value) {
  Change moments(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (has_moments(is_trained, parameters, i)) moments[i].assign(parameters[i].length(), value);
  }
  return moments;
}

// Before the first step all of them are `value`.
void prepare_moments(Change& moments, const std::vector<bool>& is_trained, const ParameterSet& parameters,
                     double value) {
  if (moments.empty()) moments = new_moments(is_trained, parameters, value);
  bool fits = moments.size() == parameters.size();
  for (std::size_t i = 0; fits && i < moments.size(); ++i)
    fits = moments[i].size() == (has_moments(is_trained, parameters, i) ? parameters[i].length() : 0);
  if (!fits) throw UsageError("earlier steps were those of other parameters");
}

void save_moments(ParameterSet& arrays, const Change& moments, const ParameterSet& parameters,
                  const std::string& prefix) {
  if (!moments.empty()) refuse_other_count_of_arrays("parameters", parameters.size(), moments.size());
  for (std::size_t i = 0; i < moments.size(); ++i) {
    if (!moments[i].empty()) arrays.add(prefix + parameters[i].name(), parameters[i].shape(), moments[i]);
  }
}

// Reads moments, and remembers whether there were any and what was missing.
struct MomentReader {
  const ParameterSet& arrays;
  const ParameterSet& parameters;
  bool found = false;
  std::string missing = {};  // the first one

  Change read(Change moments, const std::string& prefix) {
    for (std::size_t i = 0; i < moments.size(); ++i) {
      if (moments[i].empty()) continue;
      const ParameterLayout expected{prefix + parameters[i].name(), parameters[i].shape(), DataType::float64};
      const NamedArray* saved = arrays.find(expected.name);
      if (saved == nullptr) {
        if (missing.empty()) missing = expected.name;
        continue;
      }
      if (saved->layout() != expected) {
        throw UsageError(fmt::format("\"{}\": expected {}, found {}", expected.name, to_string(expected),
                                     to_string(saved->layout())));
      }
      std::ranges::copy(saved->values<double>(), moments[i].begin());
      found = true;
    }
    return moments;
  }
};

}  // namespace

OuterOptimizer::OuterOptimizer(const FederatedAggregation& rule, std::vector<bool> is_trained)
    : rule_(rule), is_trained_(std::move(is_trained)) {}

void OuterOptimizer::step(ParameterSet& parameters, const Change& change) {
  if (!is_trained_.empty()) refuse_other_count_of_arrays("is_trained", is_trained_.size(), parameters.size());
  refuse_other_shape("a change", change, parameters);
  std::visit(
      [&]<typename Rule>(const Rule& rule) {
        if constexpr (kHasMomentum<Rule>) prepare_moments(momentum_, is_trained_, parameters, 0);
        if constexpr (kHasVariance<Rule>) prepare_moments(variance_, is_trained_, parameters, rule.tau * rule.tau);
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if constexpr (kHasMomentum<Rule> || kHasVariance<Rule>) {
            if (has_moments(is_trained_, parameters, i)) {
              step_with_moments(rule, parameters[i], change[i], kHasMomentum<Rule> ? momentum_[i].data() : nullptr,
                                kHasVariance<Rule> ? variance_[i].data() : nullptr);
              continue;
            }
          }
          add_steps(parameters[i], 0, change[i]);
        }
      },
      rule_);
}

void OuterOptimizer::save(ParameterSet& arrays, const ParameterSet& parameters, const std::string& prefix) const {
  save_moments(arrays, momentum_, parameters, prefix + "momentum/");
  save_moments(arrays, variance_, parameters, prefix + "variance/");
}

void OuterOptimizer::restore(const ParameterSet& arrays, const ParameterSet& parameters, const std::string& prefix) {
  if (!is_trained_.empty()) refuse_other_count_of_arrays("is_trained", is_trained_.size(), parameters.size());
  const Change zeros = new_moments(is_trained_, parameters, 0);
  MomentReader reader{arrays, parameters};
  Change momentum;
  Change variance;
  std::visit(
      [&]<typename Rule>(const Rule&) {
        if constexpr (kHasMomentum<Rule>) momentum = reader.read(zeros, prefix + "momentum/");
        if constexpr (kHasVariance<Rule>) variance = reader.read(zeros, prefix + "variance/");
      },
      rule_);
  if (reader.found && !reader.missing.empty())
    throw UsageError(fmt::format("\"{}\" is missing, and others are there", reader.missing));
  momentum_ = reader.found ? std::move(momentum) : Change{};
  variance_ = reader.found ? std::move(variance) : Change{};
}

}  // namespace tutti
