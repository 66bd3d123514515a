#include <tutti/coordinate/update_rule.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/update_check.hpp>

#include "multiples.hpp"

namespace tutti {
namespace {

OptimizerRule with_rate_times(OptimizerRule rule, double factor) {
  std::visit([&](auto& its) { its.lr *= factor; }, rule);
  return rule;
}

// The largest that its loop multiplies anything by for its rate: Adam divides that of the first step by 1 - beta1.
double steepest_factor(const OptimizerRule& rule) {
  return std::visit(
      []<typename Rule>(const Rule& its) {
        if constexpr (requires { its.beta1; })
          return std::max(its.lr / (1 - its.beta1), std::same_as<Rule, AdamW> ? its.lr * its.weight_decay : 0);
        else
          return its.lr;
      },
      rule);
}

// --- what rules remember ---

// Whose state is nobody else's. Checkpoints tell them by their places, which are for good.
constexpr std::array<std::string_view, 11> kKinds = {"sgd",
                                                     "sgd with momentum",
                                                     "adam",
                                                     "adam with amsgrad",
                                                     "adamw",
                                                     "adamw with amsgrad",
                                                     "rmsprop",
                                                     "rmsprop with momentum",
                                                     "rmsprop, centered",
                                                     "rmsprop with momentum, centered",
                                                     "adagrad"};

std::int64_t kind_of(const OptimizerRule& rule) {
  std::string name(to_string(rule));
  const auto add_state = [&](const auto& its) {
    if constexpr (requires { its.momentum; }) name += its.momentum != 0 ? " with momentum" : "";
    if constexpr (requires { its.centered; }) name += its.centered ? ", centered" : "";
    if constexpr (requires { its.amsgrad; }) name += its.amsgrad ? " with amsgrad" : "";
  };
  std::visit(add_state, rule);
  return std::ranges::find(kKinds, name) - kKinds.begin();
}

// Whether a rule's array of that number has means or sums of squares.
bool has_squares(const OptimizerRule& rule, std::size_t number) {
  if (std::holds_alternative<Sgd>(rule)) return false;
  const bool is_first = std::holds_alternative<RmsProp>(rule) || std::holds_alternative<Adagrad>(rule);
  return is_first ? number == 0 : number > 0;
}

bool has_negative(const NamedArray& array) {
  return dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
    if constexpr (std::floating_point<T>)
      return std::ranges::any_of(array.values<T>(), [](T number) { return number < 0; });
    else
      return false;
  });
}

class OptimizerUpdate final : public UpdateRule {
 public:
  OptimizerUpdate(const OptimizerRule& rule, std::vector<double> rate_factors)
      : rule_(rule), rate_factors_(std::move(rate_factors)) {
    refuse_unless_possible(rule_);
    for (const double factor : rate_factors_) refuse_unless_possible(with_rate_times(rule_, factor));
  }

  void prepare(const ParameterSet& parameters) override {
    if (!rate_factors_.empty() && rate_factors_.size() != parameters.size())
      throw UsageError(fmt::format("expected factors of the learning rate for {} arrays, found {}", parameters.size(),
                                   rate_factors_.size()));
    for (const NamedArray& array : parameters) {
      if (array.type() != DataType::float32 && array.type() != DataType::float64)
        throw UsageError(fmt::format("\"{}\": an optimizer changes float32 or float64, found {}", array.name(),
                                     to_string(array.type())));
    }
    if (state_count(rule_) == 0 || (!state_.empty() && state_.front().same_layout(parameters))) {
      largest_ = detail::largest_factor(parameters);
      return;
    }
    if (step_ > 0) throw UsageError("the optimizer has made steps of parameters with other names, shapes or types");
    std::vector<ParameterSet> state(state_count(rule_));
    for (ParameterSet& set : state) {
      for (const NamedArray& array : parameters) {
        set.add(array.layout());
        fill(set[set.size() - 1], initial_state(rule_));
      }
    }
    state_ = std::move(state);
    largest_ = detail::largest_factor(parameters);
  }

  void check(const UpdateStep& step) const override {
    const OptimizerRule rule = with_rate_times(rule_, step.rate_factor);
    refuse_unless_possible(rule);
    if (!(std::abs(step.gradient_scale) <= largest_))
      throw UsageError(
          fmt::format("{}: expected gradients times {:.3g} at the most, as numbers of their type go, found {}",
                      to_string(rule_), largest_, step.gradient_scale));
    const double most = rate_factors_.empty() ? 1 : std::ranges::max(rate_factors_);
    if (const double rate = steepest_factor(with_rate_times(rule, most)); !(rate <= largest_))
      throw UsageError(
          fmt::format("{}: lr: expected steps of {:.3g} at the most, as numbers of the parameters' type go, "
                      "found {}",
                      to_string(rule_), largest_, rate));
  }

  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    check(step);  // before anything is changed
    const OptimizerRule rule = with_rate_times(rule_, step.rate_factor);
    ++step_;
    std::vector<void*> state(state_.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      for (std::size_t s = 0; s < state.size(); ++s) state[s] = state_[s][i].bytes().data();
      update(rate_factors_.empty() ? rule : with_rate_times(rule, rate_factors_[i]), step_,
             {.type = parameters[i].type(),
              .parameters = parameters[i].bytes().data(),
              .gradients = gradients[i].bytes().data(),
              .state = state,
              .length = parameters[i].length(),
              .gradient_scale = step.gradient_scale});
    }
  }

  bool never_fails() const override { return true; }

  void save(ParameterSet& arrays, const std::string& prefix) const override {
    add_number(arrays, prefix + "kind", kind_of(rule_));
    add_number(arrays, prefix + "step", static_cast<std::int64_t>(step_));
    for (std::size_t s = 0; s < state_.size(); ++s) {
      for (const NamedArray& array : state_[s])
        arrays.add({state_name(prefix, s, array.name()), array.shape(), array.type()}, array.bytes());
    }
  }

  void restore(const ParameterSet& arrays, const std::string& prefix) override {
    const auto most_kind = static_cast<std::int64_t>(kKinds.size()) - 1;
    if (const std::int64_t kind = number_of(arrays, prefix + "kind", most_kind); kind != kind_of(rule_))
      throw UsageError(fmt::format("the checkpoint is of {}, and the rule is {}",
                                   kKinds[static_cast<std::size_t>(kind)],
                                   kKinds[static_cast<std::size_t>(kind_of(rule_))]));
    const std::int64_t step = number_of(arrays, prefix + "step", std::numeric_limits<std::int64_t>::max());
    std::vector<ParameterSet> state = state_;
    for (std::size_t s = 0; s < state.size(); ++s) {
      copy_named(arrays, state[s], state_name(prefix, s, ""));
      for (const NamedArray& array : state[s]) refuse_impossible(array, s, prefix);
    }
    refuse_surplus(arrays, prefix);
    state_ = std::move(state);
    step_ = static_cast<std::uint64_t>(step);
  }

 private:
  static std::string state_name(const std::string& prefix, std::size_t number, const std::string& parameter) {
    return fmt::format("{}state/{}/{}", prefix, number, parameter);
  }

  static void add_number(ParameterSet& arrays, const std::string& name, std::int64_t number) {
    arrays.add(name, {1}, ConstArray(&number, 1, DataType::int64));
  }

  static std::int64_t number_of(const ParameterSet& arrays, const std::string& name, std::int64_t most) {
    const std::span<const std::int64_t> numbers = arrays.at(name).values<std::int64_t>();
    if (numbers.size() != 1 || numbers[0] < 0 || numbers[0] > most)
      throw UsageError(fmt::format("\"{}\": expected one number from 0 to {}", name, most));
    return numbers[0];
  }

  void refuse_impossible(const NamedArray& array, std::size_t number, const std::string& prefix) const {
    const auto refuse = [&](const char* what) {
      throw UsageError(fmt::format("\"{}\" has numbers that are {}", state_name(prefix, number, array.name()), what));
    };
    if (!has_finite_numbers(array)) refuse("infinite or not a number");
    if (has_squares(rule_, number) && has_negative(array)) refuse("negative, and are those of squares");
  }

  // What goes by the name of state, and is of nothing that is here.
  void refuse_surplus(const ParameterSet& arrays, const std::string& prefix) const {
    std::set<std::string> expected;
    for (std::size_t s = 0; s < state_.size(); ++s) {
      for (const NamedArray& array : state_[s]) expected.insert(state_name(prefix, s, array.name()));
    }
    for (const NamedArray& array : arrays) {
      if (array.name().starts_with(prefix + "state/") && !expected.contains(array.name()))
        throw UsageError(fmt::format("\"{}\" is of nothing that the rule remembers", array.name()));
    }
  }

  static void fill(NamedArray& array, double value) {
    if (array.type() == DataType::float32)
      std::ranges::fill(array.values<float>(), static_cast<float>(value));
    else
      std::ranges::fill(array.values<double>(), value);
  }

  OptimizerRule rule_;
  std::vector<double> rate_factors_;                     // by array; all 1, where empty
  double largest_ = std::numeric_limits<double>::max();  // factor, as the parameters' types go
  std::uint64_t step_ = 0;
  std::vector<ParameterSet> state_;  // one for each array that the optimizer keeps
};

}  // namespace

// By what the rule would save as it is: its names, and what is there where the checkpoint has nothing.
void restore_rule(UpdateRule& rule, const ParameterSet& arrays, const std::string& prefix, Restored what) {
  if (what == Restored::all) return rule.restore(arrays, prefix);
  ParameterSet state;
  rule.save(state, prefix);
  const auto saved = [&](const NamedArray& its) {
    const NamedArray* found = arrays.find(its.name());
    return found != nullptr && found->layout() == its.layout() ? found : nullptr;
  };
  if (const NamedArray* kind = state.find(prefix + "kind")) {
    const NamedArray* before = saved(*kind);
    if (before == nullptr || !std::ranges::equal(before->bytes(), std::as_const(*kind).bytes())) return;
  }
  for (NamedArray& its : state) {
    if (const NamedArray* found = saved(its)) copy_array(*found, its);
  }
  rule.restore(state, prefix);
}

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerRule& rule, std::vector<double> rate_factors) {
  return std::make_unique<OptimizerUpdate>(rule, std::move(rate_factors));
}

}  // namespace tutti
