#include <tutti/coordinate/update_rule.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/one_array.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using testing::doubles;
using testing::numbers_of;
using testing::one_array;
using testing::usage_error;

// Loops as in a book, in double.
struct PlainLoop {
  std::string name;
  OptimizerRule rule;
  // One number, its gradient, the rate's factor, and what it remembers; the step counts from 1.
  std::function<void(double& w, double g, double factor, std::vector<double>& memory, int step)> step;
};

std::vector<PlainLoop> plain_loops() {
  return {{"rate", Sgd{.lr = 0.1}, [](double& w, double g, double f, std::vector<double>&, int) { w -= f * 0.1 * g; }},
          {"momentum", Sgd{.lr = 0.1, .momentum = 0.9},
           [](double& w, double g, double f, std::vector<double>& m, int) {
             m[0] = 0.9 * m[0] + g;
             w -= f * 0.1 * m[0];
           }},
          {"adam", Adam{.lr = 0.01},
           [](double& w, double g, double f, std::vector<double>& m, int step) {
             m[0] = 0.9 * m[0] + 0.1 * g;
             m[1] = 0.999 * m[1] + 0.001 * g * g;
             const double first = m[0] / (1 - std::pow(0.9, step));
             const double second = m[1] / (1 - std::pow(0.999, step));
             w -= f * 0.01 * first / (std::sqrt(second) + 1e-8);
           }},
          {"adagrad", Adagrad{.lr = 0.05}, [](double& w, double g, double f, std::vector<double>& m, int) {
             m[0] += g * g;
             w -= f * 0.05 * g / (std::sqrt(m[0]) + 1e-10);
           }}};
}

TEST(UpdateRule, IsThePlainLoop) {
  constexpr std::size_t kLength = 100;
  for (const PlainLoop& loop : plain_loops()) {
    for (const double direction : {1.0, -1.0}) {
      SCOPED_TRACE(loop.name + (direction > 0 ? ", descent" : ", ascent"));
      RandomStream draws({1});
      std::vector<double> expected(kLength);
      for (double& value : expected) value = draws.normal();
      std::vector<std::vector<double>> memory(kLength, std::vector<double>(2));
      ParameterSet parameters = doubles(expected);
      const std::unique_ptr<UpdateRule> rule = make_update_rule(loop.rule);
      rule->prepare(parameters);
      for (int step = 1; step <= 20; ++step) {
        const double factor = step <= 10 ? 1 : 0.25;
        std::vector<double> gradients(kLength);
        for (double& value : gradients) value = draws.normal();
        rule->apply(parameters, doubles(gradients), {.gradient_scale = direction * 0.5, .rate_factor = factor});
        for (std::size_t i = 0; i < kLength; ++i)
          loop.step(expected[i], direction * 0.5 * gradients[i], factor, memory[i], step);
      }
      const std::vector<double> found = numbers_of(parameters);
      for (std::size_t i = 0; i < kLength; ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
    }
  }
}

TEST(UpdateRule, GoesOnToTheBitFromWhatItSaved) {
  for (const PlainLoop& loop : plain_loops()) {
    RandomStream draws({2});
    ParameterSet parameters = doubles({1, 2, 3});
    const std::unique_ptr<UpdateRule> rule = make_update_rule(loop.rule);
    rule->prepare(parameters);
    const auto gradients = [&] { return doubles({draws.normal(), draws.normal(), draws.normal()}); };
    for (int i = 0; i < 5; ++i) rule->apply(parameters, gradients(), {});
    ParameterSet saved;
    rule->save(saved, "rule/");
    ParameterSet others = parameters;
    const std::unique_ptr<UpdateRule> again = make_update_rule(loop.rule);
    again->prepare(others);
    again->restore(saved, "rule/");
    for (int i = 0; i < 5; ++i) {
      const ParameterSet its = gradients();
      rule->apply(parameters, its, {});
      again->apply(others, its, {});
    }
    EXPECT_TRUE(parameters == others) << loop.name;
  }
}

TEST(UpdateRule, RefusesWhatItCannotChange) {
  EXPECT_EQ(usage_error([] { (void)make_update_rule(Sgd{.lr = -1}); }),
            "sgd: lr: expected a number from 0 on, found -1");
  const std::unique_ptr<UpdateRule> rule = make_update_rule(Adam{});
  EXPECT_EQ(usage_error([&] { rule->prepare(one_array<std::int64_t>({1})); }),
            "\"weight\": an optimizer changes float32 or float64, found int64");
  ParameterSet parameters = doubles({1});
  rule->prepare(doubles({1, 2}));
  rule->prepare(parameters);  // it has made no steps of the other ones
  rule->apply(parameters, doubles({1}), {});
  rule->prepare(parameters);
  EXPECT_EQ(usage_error([&] {
              rule->prepare(doubles({1, 2}));
            }),
            "the optimizer has made steps of parameters with other names, shapes or types");
}

TEST(UpdateRule, IsNotTouchedByARateThatCannotBe) {
  const std::unique_ptr<UpdateRule> rule = make_update_rule(Adam{.lr = 10});
  ParameterSet parameters = doubles({1});
  rule->prepare(parameters);
  ParameterSet before;
  rule->save(before, "");
  EXPECT_THROW(rule->apply(parameters, doubles({1}), {.rate_factor = 1e308}), UsageError);
  ParameterSet after;
  rule->save(after, "");
  EXPECT_TRUE(before == after);
  EXPECT_EQ(numbers_of(parameters)[0], 1);
}

ParameterSet saved_by(const OptimizerRule& rule, const ParameterSet& parameters) {
  const std::unique_ptr<UpdateRule> its = make_update_rule(rule);
  its->prepare(parameters);
  ParameterSet changed = parameters;
  its->apply(changed, parameters, {});
  ParameterSet saved;
  its->save(saved, "rule/");
  return saved;
}

std::string refused(UpdateRule& rule, const ParameterSet& saved) {
  ParameterSet before;
  rule.save(before, "rule/");
  const std::string why = usage_error([&] { rule.restore(saved, "rule/"); });
  ParameterSet after;
  rule.save(after, "rule/");
  EXPECT_TRUE(why == "(no error)" || before == after) << why;
  return why;
}

TEST(UpdateRule, RefusesToGoOnFromSomethingElse) {
  const std::unique_ptr<UpdateRule> rule = make_update_rule(Adam{});
  rule->prepare(doubles({1}));
  for (const ParameterSet& saved : {ParameterSet(), saved_by(Adam{}, doubles({1, 2})),
                                    saved_by(Adam{}, one_array<float>({1})), saved_by(Adam{}, doubles({1}, "bias"))})
    EXPECT_NE(refused(*rule, saved), "(no error)");
}

TEST(UpdateRule, GoesOnFromWhatTheSameRuleRemembersAlone) {
  struct Named {
    std::string name;
    OptimizerRule rule;
    OptimizerRule tuned;  // the same with other numbers
  };
  const std::vector<Named> rules = {
      {"sgd", Sgd{}, Sgd{.lr = 7, .weight_decay = 0.5}},
      {"sgd with momentum", Sgd{.momentum = 0.5}, Sgd{.momentum = 0.9, .nesterov = true}},
      {"adam", Adam{}, Adam{.lr = 1, .beta1 = 0.5}},
      {"adam with amsgrad", Adam{.amsgrad = true}, Adam{.lr = 1, .amsgrad = true}},
      {"adamw", AdamW{}, AdamW{.weight_decay = 0}},
      {"adamw with amsgrad", AdamW{.amsgrad = true}, AdamW{.lr = 1, .amsgrad = true}},
      {"rmsprop", RmsProp{}, RmsProp{.alpha = 0.5}},
      {"rmsprop with momentum", RmsProp{.momentum = 0.5}, RmsProp{.momentum = 0.9}},
      {"rmsprop, centered", RmsProp{.centered = true}, RmsProp{.lr = 1, .centered = true}},
      {"rmsprop with momentum, centered", RmsProp{.momentum = 0.5, .centered = true},
       RmsProp{.momentum = 0.9, .centered = true}},
      {"adagrad", Adagrad{}, Adagrad{.initial_accumulator_value = 3}}};
  for (const Named& one : rules) {
    for (const Named& other : rules) {
      const std::unique_ptr<UpdateRule> rule = make_update_rule(other.tuned);
      rule->prepare(doubles({1, -2}));
      EXPECT_EQ(refused(*rule, saved_by(one.rule, doubles({1, -2}))),
                one.name == other.name ? "(no error)"
                                       : "the checkpoint is of " + one.name + ", and the rule is " + other.name);
    }
  }
}

TEST(UpdateRule, RefusesStateThatCannotBe) {
  const std::unique_ptr<UpdateRule> rule = make_update_rule(Adam{});
  rule->prepare(doubles({1, 2}));
  const ParameterSet good = saved_by(Adam{}, doubles({1, 2}));
  const auto with = [&](const std::string& name, double number) {
    ParameterSet saved = good;
    saved.at(name).values<double>()[1] = number;
    return saved;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::string& name : std::vector<std::string>{"rule/state/0/weight", "rule/state/1/weight"})
      EXPECT_EQ(refused(*rule, with(name, bad)), "\"" + name + "\" has numbers that are infinite or not a number");
  }
  EXPECT_EQ(refused(*rule, with("rule/state/1/weight", -1e-300)),
            "\"rule/state/1/weight\" has numbers that are negative, and are those of squares");
  for (const std::string& name : std::vector<std::string>{"rule/state/2/weight", "rule/state/0/bias"}) {
    ParameterSet surplus = good;
    surplus.add({.name = name, .shape = {2}, .type = DataType::float64});
    EXPECT_EQ(refused(*rule, surplus), "\"" + name + "\" is of nothing that the rule remembers");
  }
  ParameterSet others = good;
  others.add({.name = "another/state/5/weight"});
  EXPECT_EQ(refused(*rule, others), "(no error)");
  EXPECT_EQ(refused(*rule, with("rule/state/0/weight", -5)), "(no error)");
  for (const OptimizerRule& its : std::vector<OptimizerRule>{RmsProp{.momentum = 0.5}, Adagrad{}}) {
    const std::unique_ptr<UpdateRule> squares = make_update_rule(its);
    squares->prepare(doubles({1, 2}));
    ParameterSet saved = saved_by(its, doubles({1, 2}));
    saved.at("rule/state/0/weight").values<double>()[0] = -1;
    EXPECT_NE(refused(*squares, saved), "(no error)");
  }
}

TEST(UpdateRule, GoesOnFromWhatFits) {
  const ParameterSet parameters = doubles({1, 2});
  const ParameterSet saved = saved_by(Adam{}, parameters);
  const auto restored = [](const OptimizerRule& rule, const ParameterSet& its, const ParameterSet& from) {
    const std::unique_ptr<UpdateRule> made = make_update_rule(rule);
    made->prepare(its);
    restore_rule(*made, from, "rule/", Restored::what_fits);
    ParameterSet state;
    made->save(state, "rule/");
    return state;
  };
  EXPECT_EQ(restored(Adam{}, parameters, saved), saved);
  // Another rule begins anew.
  for (const OptimizerRule& rule : std::vector<OptimizerRule>{Sgd{.momentum = 0.9}, RmsProp{}, Adam{.amsgrad = true}}) {
    const std::unique_ptr<UpdateRule> fresh = make_update_rule(rule);
    fresh->prepare(parameters);
    ParameterSet beginning;
    fresh->save(beginning, "rule/");
    EXPECT_EQ(restored(rule, parameters, saved), beginning);
  }
  // So does a parameter that there was nothing of; one that there is no more is left out.
  ParameterSet two = parameters;
  two.add({.name = "new", .shape = {1}, .type = DataType::float64});
  const ParameterSet more = restored(Adam{}, two, saved);
  EXPECT_EQ(more.at("rule/state/1/new").values<double>()[0], 0);
  for (const NamedArray& array : saved) EXPECT_TRUE(std::ranges::equal(more.at(array.name()).bytes(), array.bytes()));
  EXPECT_EQ(restored(Adam{}, parameters, more), saved);
  // What cannot be is no other rule's.
  ParameterSet damaged = saved;
  damaged.at("rule/state/1/weight").values<double>()[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(usage_error([&] { (void)restored(Adam{}, parameters, damaged); }),
            "\"rule/state/1/weight\" has numbers that are infinite or not a number");
}

}  // namespace
}  // namespace tutti
