#include <tutti/kernels/optimizer.hpp>

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/instructions.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::HasSubstr;

std::vector<OptimizerRule> all_rules() {
  return {Sgd{.lr = 0.1},
          Sgd{.lr = 0.1, .weight_decay = 0.01},
          Sgd{.lr = 0.1, .momentum = 0.9},
          Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01},
          Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
          Adam{.lr = 0.01},
          Adam{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1},
          Adam{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true},
          AdamW{.lr = 0.01},
          AdamW{.lr = 0.01, .weight_decay = 0.2, .amsgrad = true},
          RmsProp{.lr = 0.01},
          RmsProp{.lr = 0.01, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8},
          RmsProp{.lr = 0.01, .centered = true},
          RmsProp{.lr = 0.01, .momentum = 0.8, .centered = true},
          Adagrad{.lr = 0.1},
          Adagrad{.lr = 0.1, .lr_decay = 0.05, .weight_decay = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-6}};
}

std::string describe(const OptimizerRule& rule, std::size_t index) {
  return std::string(to_string(rule)) + ", number " + std::to_string(index);
}

// One parameter, by the book.
class Reference {
 public:
  Reference(const OptimizerRule& rule, double parameter) : rule_(rule), p_(parameter) {
    if (const auto* adagrad = std::get_if<Adagrad>(&rule)) sum_ = adagrad->initial_accumulator_value;
  }

  double step(double gradient) {
    ++steps_;
    std::visit([&](const auto& rule) { apply(rule, gradient); }, rule_);
    return p_;
  }

 private:
  void apply(const Sgd& rule, double g) {
    g += rule.weight_decay * p_;
    if (rule.momentum != 0) {
      buffer_ = steps_ == 1 ? g : rule.momentum * buffer_ + (1 - rule.dampening) * g;
      g = rule.nesterov ? g + rule.momentum * buffer_ : buffer_;
    }
    p_ -= rule.lr * g;
  }
  void apply(const Adam& rule, double g) { move(rule, g + rule.weight_decay * p_); }
  void apply(const AdamW& rule, double g) {
    p_ -= rule.lr * rule.weight_decay * p_;
    move(rule, g);
  }
  template <typename Rule>
  void move(const Rule& rule, double g) {
    mean_ = rule.beta1 * mean_ + (1 - rule.beta1) * g;
    square_ = rule.beta2 * square_ + (1 - rule.beta2) * g * g;
    most_ = std::max(most_, square_);
    const double mean = mean_ / (1 - std::pow(rule.beta1, steps_));
    const double square = (rule.amsgrad ? most_ : square_) / (1 - std::pow(rule.beta2, steps_));
    p_ -= rule.lr * mean / (std::sqrt(square) + rule.eps);
  }
  void apply(const RmsProp& rule, double g) {
    g += rule.weight_decay * p_;
    square_ = rule.alpha * square_ + (1 - rule.alpha) * g * g;
    mean_ = rule.alpha * mean_ + (1 - rule.alpha) * g;
    const double change = g / (std::sqrt(square_ - (rule.centered ? mean_ * mean_ : 0)) + rule.eps);
    buffer_ = rule.momentum * buffer_ + change;
    p_ -= rule.lr * buffer_;
  }
  void apply(const Adagrad& rule, double g) {
    g += rule.weight_decay * p_;
    sum_ += g * g;
    p_ -= rule.lr / (1 + (steps_ - 1) * rule.lr_decay) * g / (std::sqrt(sum_) + rule.eps);
  }

  OptimizerRule rule_;
  double p_;
  double steps_ = 0;
  double buffer_ = 0;
  double mean_ = 0;
  double square_ = 0;
  double most_ = 0;
  double sum_ = 0;
};

template <typename T>
struct Arrays {
  Arrays(const OptimizerRule& rule, std::size_t length, DataType data_type)
      : type(data_type),
        parameters(length),
        gradients(length),
        state(state_count(rule), std::vector<T>(length, static_cast<T>(initial_state(rule)))) {
    RandomStream draws({1});
    for (T& parameter : parameters) parameter = static_cast<T>(draws.uniform() - 0.5);
  }

  void draw_gradients(std::uint64_t step) {
    RandomStream draws({2, step});
    for (T& gradient : gradients) gradient = static_cast<T>(draws.uniform() - 0.5);
  }

  void update(const OptimizerRule& rule, std::uint64_t step, std::size_t first, std::size_t count,
              double gradient_scale = 1) {
    std::vector<void*> pointers;
    for (std::vector<T>& array : state) pointers.push_back(array.data() + first);
    tutti::update(rule, step,
                  {.type = type,
                   .parameters = parameters.data() + first,
                   .gradients = gradients.data() + first,
                   .state = pointers,
                   .length = count,
                   .gradient_scale = gradient_scale});
  }

  DataType type;
  std::vector<T> parameters;
  std::vector<T> gradients;
  std::vector<std::vector<T>> state;
};

TEST(Optimizer, GoesByTheBookOverAHundredSteps) {
  const std::vector<OptimizerRule> rules = all_rules();
  for (std::size_t number = 0; number < rules.size(); ++number) {
    SCOPED_TRACE(describe(rules[number], number));
    constexpr std::size_t kLength = 37;
    Arrays<double> wide(rules[number], kLength, DataType::float64);
    Arrays<float> narrow(rules[number], kLength, DataType::float32);
    std::vector<Reference> expected;
    for (double parameter : wide.parameters) expected.emplace_back(rules[number], parameter);
    for (std::uint64_t step = 1; step <= 100; ++step) {
      wide.draw_gradients(step);
      narrow.draw_gradients(step);
      wide.update(rules[number], step, 0, kLength);
      narrow.update(rules[number], step, 0, kLength);
      for (std::size_t i = 0; i < kLength; ++i) {
        const double right = expected[i].step(wide.gradients[i]);
        ASSERT_NEAR(wide.parameters[i], right, 1e-12) << "step " << step;
        ASSERT_NEAR(static_cast<double>(narrow.parameters[i]), right, 2e-3) << "step " << step;
      }
    }
  }
}

template <typename T>
void expect_the_same_bits(DataType type) {
  const std::vector<OptimizerRule> rules = all_rules();
  for (std::size_t number = 0; number < rules.size(); ++number) {
    SCOPED_TRACE(describe(rules[number], number));
    constexpr std::size_t kLength = 1003;
    std::vector<Arrays<T>> results;
    testing::with_all_instructions([&] {
      for (bool in_slices : {false, true}) {
        Arrays<T>& arrays = results.emplace_back(rules[number], kLength, type);
        for (std::uint64_t step = 1; step <= 5; ++step) {
          arrays.draw_gradients(step);
          if (in_slices) {
            arrays.update(rules[number], step, 501, kLength - 501);
            arrays.update(rules[number], step, 0, 501);
          } else {
            arrays.update(rules[number], step, 0, kLength);
          }
        }
        EXPECT_EQ(arrays.parameters, results[0].parameters);
        EXPECT_EQ(arrays.state, results[0].state);
      }
    });
  }
}

TEST(Optimizer, GivesTheSameBitsOnEveryCpuAndInSlices) {
  expect_the_same_bits<float>(DataType::float32);
  expect_the_same_bits<double>(DataType::float64);
}

// A power of two scales without rounding, so that nothing else than the scale may show.
template <typename T>
void expect_the_scale_to_come_first(DataType type) {
  const std::vector<OptimizerRule> rules = all_rules();
  for (std::size_t number = 0; number < rules.size(); ++number) {
    SCOPED_TRACE(describe(rules[number], number));
    constexpr std::size_t kLength = 37;
    Arrays<T> plain(rules[number], kLength, type);
    Arrays<T> scaled(rules[number], kLength, type);
    for (std::uint64_t step = 1; step <= 10; ++step) {
      plain.draw_gradients(step);
      scaled.draw_gradients(step);
      for (T& gradient : scaled.gradients) gradient *= T{64};
      const std::vector<T> gradients = scaled.gradients;
      plain.update(rules[number], step, 0, kLength);
      scaled.update(rules[number], step, 0, kLength, 1.0 / 64);
      EXPECT_EQ(scaled.gradients, gradients) << "gradients are read, not written";
    }
    EXPECT_EQ(scaled.parameters, plain.parameters);
    EXPECT_EQ(scaled.state, plain.state);
  }
}

TEST(Optimizer, MultipliesGradientsByTheirScaleFirst) {
  expect_the_scale_to_come_first<float>(DataType::float32);
  expect_the_scale_to_come_first<double>(DataType::float64);
}

TEST(Optimizer, RefusesWhatCannotBe) {
  const auto message = [](const OptimizerRule& rule) {
    return testing::usage_error([&] { refuse_unless_possible(rule); });
  };
  for (const OptimizerRule& rule : all_rules()) EXPECT_EQ(message(rule), "(no error)");
  EXPECT_EQ(message(Sgd{.lr = -1}), "sgd: lr: expected a number from 0 on, found -1");
  EXPECT_THAT(message(Sgd{.lr = NAN}), HasSubstr("sgd: lr: expected"));
  EXPECT_EQ(message(Sgd{.nesterov = true}), "sgd: nesterov: needs a momentum, and no dampening");
  EXPECT_THAT(message(Sgd{.momentum = 0.9, .dampening = 0.1, .nesterov = true}), HasSubstr("no dampening"));
  EXPECT_EQ(message(Adam{.beta1 = 1}), "adam: beta1: expected a number from 0 to below 1, found 1");
  EXPECT_EQ(message(AdamW{.beta2 = -0.5}), "adamw: beta2: expected a number from 0 to below 1, found -0.5");
  EXPECT_THAT(message(RmsProp{.weight_decay = -0.5}), HasSubstr("rmsprop: weight_decay"));
  EXPECT_THAT(message(Adagrad{.lr_decay = -0.5}), HasSubstr("adagrad: lr_decay"));

  Arrays<float> arrays(Sgd{}, 3, DataType::float32);
  EXPECT_EQ(testing::usage_error([&] { arrays.update(Sgd{}, 0, 0, 3); }), "an optimizer's steps count from 1");
  EXPECT_EQ(testing::usage_error([&] { arrays.update(Adam{}, 1, 0, 3); }), "adam keeps 2 arrays of state, found 0");
  arrays.type = DataType::int32;
  EXPECT_EQ(testing::usage_error([&] { arrays.update(Sgd{}, 1, 0, 3); }),
            "an optimizer updates float32 or float64, not int32");
}

}  // namespace
}  // namespace tutti
