#include <tutti/coordinate/update_rule.hpp>

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

OptimizerRule with_rate_times(OptimizerRule rule, double factor) {
  std::visit([&](auto& its) { its.lr *= factor; }, rule);
  return rule;
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
    if (state_count(rule_) == 0 || (!state_.empty() && state_.front().same_layout(parameters))) return;
    if (step_ > 0) throw UsageError("the optimizer has made steps of parameters with other names, shapes or types");
    std::vector<ParameterSet> state(state_count(rule_));
    for (ParameterSet& set : state) {
      for (const NamedArray& array : parameters) {
        set.add(array.layout());
        fill(set[set.size() - 1], initial_state(rule_));
      }
    }
    state_ = std::move(state);
  }

  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    const OptimizerRule rule = with_rate_times(rule_, step.rate_factor);
    refuse_unless_possible(rule);  // before anything is changed
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
    const std::vector<std::int64_t> step = {static_cast<std::int64_t>(step_)};
    arrays.add(prefix + "step", {1}, step);
    for (std::size_t s = 0; s < state_.size(); ++s) {
      for (const NamedArray& array : state_[s])
        arrays.add({state_name(prefix, s, array.name()), array.shape(), array.type()}, array.bytes());
    }
  }

  void restore(const ParameterSet& arrays, const std::string& prefix) override {
    const std::span<const std::int64_t> step = arrays.at(prefix + "step").values<std::int64_t>();
    if (step.size() != 1 || step[0] < 0)
      throw UsageError(fmt::format("\"{}step\": expected one number from 0 on", prefix));
    std::vector<ParameterSet> state = state_;
    for (std::size_t s = 0; s < state.size(); ++s) copy_named(arrays, state[s], state_name(prefix, s, ""));
    state_ = std::move(state);
    step_ = static_cast<std::uint64_t>(step[0]);
  }

 private:
  static std::string state_name(const std::string& prefix, std::size_t number, const std::string& parameter) {
    return fmt::format("{}state/{}/{}", prefix, number, parameter);
  }

  static void fill(NamedArray& array, double value) {
    if (array.type() == DataType::float32)
      std::ranges::fill(array.values<float>(), static_cast<float>(value));
    else
      std::ranges::fill(array.values<double>(), value);
  }

  OptimizerRule rule_;
  std::vector<double> rate_factors_;  // by array; all 1, where empty
  std::uint64_t step_ = 0;
  std::vector<ParameterSet> state_;  // one for each array that the optimizer keeps
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerRule& rule, std::vector<double> rate_factors) {
  return std::make_unique<OptimizerUpdate>(rule, std::move(rate_factors));
}

}  // namespace tutti
