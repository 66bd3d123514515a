// Update rules that do what a test wants at a moment that it chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <latch>
#include <stdexcept>
#include <utility>
#include <vector>

#include <tutti/coordinate/update_rule.hpp>

namespace tutti::testing {

// Subtracts gradients times their scale, in float64.
inline void subtract(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto to = parameters[i].values<double>();
    const auto from = gradients[i].values<double>();
    for (std::size_t j = 0; j < to.size(); ++j) to[j] -= step.rate_factor * step.gradient_scale * from[j];
  }
}

// Its first change begins, and goes on when it is told to.
class GatedRule : public UpdateRule {
 public:
  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    if (std::exchange(is_first_, false)) {
      begun.count_down();
      goes_on.wait();
    }
    subtract(parameters, gradients, step);
  }

  std::latch begun{1};
  std::latch goes_on{1};

 private:
  bool is_first_ = true;
};

// Throws where the first number is the unlucky one, having changed something already.
class UnluckyRule : public UpdateRule {
 public:
  static constexpr double kUnlucky = 13;

  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    subtract(parameters, gradients, step);
    if (gradients[0].values<double>()[0] == kUnlucky) throw std::runtime_error("thirteen");
  }
};

// Remembers the first number of all gradients, in the order in which they changed the model.
class RememberingRule : public UpdateRule {
 public:
  void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
    subtract(parameters, gradients, step);
    seen.push_back(gradients[0].values<double>()[0]);
  }
  bool never_fails() const override { return true; }

  std::vector<double> seen;
};

}  // namespace tutti::testing
