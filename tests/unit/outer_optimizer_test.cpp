#include <tutti/coordinate/outer_optimizer.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using strategy::FedAdagrad;
using strategy::FedAdam;
using strategy::FedAvg;
using strategy::FedAvgM;
using strategy::FederatedAggregation;
using strategy::FedYogi;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::usage_error;

const std::vector<FederatedAggregation> kWithMoments = {FedAvgM{},
                                                        FedAvgM{.momentum = 0.5, .lr = 0.3},
                                                        FedAvgM{.momentum = 0.9, .lr = 0.7, .nesterov = true},
                                                        FedAdam{},
                                                        FedAdam{.lr = 0.02, .beta1 = 0.5, .beta2 = 0.9, .tau = 0.1},
                                                        FedYogi{},
                                                        FedYogi{.beta1 = 0.3, .beta2 = 0.7, .tau = 0.05, .lr = 0.2},
                                                        FedAdagrad{},
                                                        FedAdagrad{.lr = 0.5, .tau = 0.01}};
const std::vector<FederatedAggregation> kWithout = {
    FedAvg{},         strategy::FedProx{},   strategy::Median{}, strategy::TrimmedMean{},
    strategy::Krum{}, strategy::MultiKrum{}, strategy::Bulyan{}, strategy::NormClipping{}};

template <Element T>
void add_array(ParameterSet& set, const std::string& name, const std::vector<T>& values) {
  set.add(name, {static_cast<std::int64_t>(values.size())}, values);
}

template <Element T>
ParameterSet one_array(const std::vector<T>& values) {
  ParameterSet set;
  add_array(set, "weight", values);
  return set;
}

// What a step does with one number, in the words of the paper.
struct Scalar {
  double momentum = 0;
  double variance = 0;

  double step(const FedAvgM& rule, double change) {
    momentum = rule.momentum * momentum + change;
    return rule.nesterov ? rule.lr * (change + rule.momentum * momentum) : rule.lr * momentum;
  }
  double step(const FedAdam& rule, double change) {
    momentum = rule.beta1 * momentum + (1 - rule.beta1) * change;
    variance = rule.beta2 * variance + (1 - rule.beta2) * change * change;
    return rule.lr * momentum / (std::sqrt(variance) + rule.tau);
  }
  double step(const FedYogi& rule, double change) {
    momentum = rule.beta1 * momentum + (1 - rule.beta1) * change;
    const double above = variance - change * change;
    const double sign = above > 0 ? 1 : above < 0 ? -1 : 0;
    variance = variance - (1 - rule.beta2) * change * change * sign;
    return rule.lr * momentum / (std::sqrt(variance) + rule.tau);
  }
  double step(const FedAdagrad& rule, double change) {
    variance += change * change;
    return rule.lr * change / (std::sqrt(variance) + rule.tau);
  }
  template <typename Other>
  double step(const Other&, double change) {
    return change;
  }
};

double tau_of(const FederatedAggregation& rule) {
  return std::visit(
      [](const auto& its) {
        if constexpr (requires { its.tau; }) return its.tau;
        return 0.0;
      },
      rule);
}

TEST(OuterOptimizer, AddsTheChangeWhereTheRuleHasNoMoments) {
  for (const FederatedAggregation& rule : kWithout) {
    ParameterSet set = one_array<float>({1, -2, 0.5f});
    OuterOptimizer optimizer(rule);
    for (int step = 0; step < 3; ++step) optimizer.step(set, {{0.25, 1, -0.5}});
    EXPECT_THAT(set[0].values<float>(), ElementsAre(1.75f, 1, -1)) << rule.index();
  }
}

TEST(OuterOptimizer, TakesTheFirstStepsByHand) {
  const auto after = [](const FederatedAggregation& rule, const std::vector<double>& changes) {
    ParameterSet set = one_array<double>({1});
    OuterOptimizer optimizer(rule);
    for (const double change : changes) optimizer.step(set, {{change}});
    return set[0].values<double>()[0];
  };
  EXPECT_EQ(after(FedAvgM{.momentum = 0.5, .lr = 2}, {1}), 3);
  EXPECT_EQ(after(FedAvgM{.momentum = 0.5, .lr = 2}, {1, 1, -1}), 1 + 2 + 3 - 0.5);
  // The momentum is 1 and then 1.5.
  EXPECT_EQ(after(FedAvgM{.momentum = 0.5, .lr = 2, .nesterov = true}, {1, 1}), 1 + 2 * 1.5 + 2 * 1.75);
  // m = 1, v = 0.25 / 4 + 4 * 3 / 4 = 3.0625
  EXPECT_EQ(after(FedAdam{.lr = 1, .beta1 = 0.5, .beta2 = 0.25, .tau = 0.5}, {2}), 1 + 1 / 2.25);
  // v = 0.25 + 0.75 * 4 = 3.25, since 4 is above 0.25; then of a change of 1, below 3.25, 3.25 - 0.75 = 2.5
  const FedYogi yogi{.beta1 = 0.5, .beta2 = 0.25, .tau = 0.5, .lr = 1};
  EXPECT_THAT(after(yogi, {2}), DoubleEq(1 + 1 / (std::sqrt(3.25) + 0.5)));
  EXPECT_THAT(after(yogi, {2, 1}), DoubleEq(1 + 1 / (std::sqrt(3.25) + 0.5) + 1 / (std::sqrt(2.5) + 0.5)));
  // Where the square is the variance, that stays: v = 0.25.
  EXPECT_EQ(after(yogi, {0.5}), 1.25);
  // v = 0.5625 + 1 = 1.5625
  EXPECT_EQ(after(FedAdagrad{.lr = 2, .tau = 0.75}, {1}), 2);
}

TEST(OuterOptimizer, IsTheScalarLoopForEveryRuleAndType) {
  constexpr std::size_t kLength = 5000;  // longer than what is computed with at a time
  std::vector<FederatedAggregation> rules = kWithMoments;
  rules.insert(rules.end(), kWithout.begin(), kWithout.end());
  for (std::size_t which = 0; which < rules.size(); ++which) {
    const FederatedAggregation& rule = rules[which];
    SCOPED_TRACE("rule " + std::to_string(which));
    RandomStream draws({which});
    std::vector<double> start(kLength);
    for (double& number : start) number = draws.normal();
    ParameterSet set;
    add_array(set, "double", start);
    add_array(set, "single", std::vector<float>(start.begin(), start.end()));
    std::vector<double> doubles = start;
    std::vector<float> singles(start.begin(), start.end());
    std::vector<Scalar> scalars(kLength, Scalar{.variance = tau_of(rule) * tau_of(rule)});
    OuterOptimizer optimizer(rule);
    for (int step = 0; step < 20; ++step) {
      std::vector<double> change(kLength);
      for (double& number : change) number = draws.normal() * std::exp(draws.normal());
      optimizer.step(set, {change, change});
      for (std::size_t i = 0; i < kLength; ++i) {
        const double moved = std::visit([&](const auto& its) { return scalars[i].step(its, change[i]); }, rule);
        doubles[i] += moved;
        singles[i] = static_cast<float>(static_cast<double>(singles[i]) + moved);
      }
    }
    for (std::size_t i = 0; i < kLength; ++i) {
      ASSERT_NEAR(set[0].values<double>()[i], doubles[i], 1e-12 * (1 + std::abs(doubles[i])));
      ASSERT_NEAR(set[1].values<float>()[i], singles[i], 1e-6f * (1 + std::abs(singles[i])));
    }
  }
}

TEST(OuterOptimizer, RoundsHalvesOnce) {
  // Just beside the middle of two neighbours, where a float of it would be the middle itself.
  const auto check = []<typename Half>(std::type_identity<Half>, std::uint16_t infinity) {
    std::vector<double> change;
    std::vector<Half> expected;
    for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
      const Half lower{bits};
      const Half upper{static_cast<std::uint16_t>(bits + 1)};
      const double middle = (static_cast<double>(lower.to_float()) + static_cast<double>(upper.to_float())) / 2;
      for (const double sign : {1.0, -1.0}) {
        const std::uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
        for (const auto& [factor, nearest] :
             {std::pair(1 - 0x1p-40, lower), std::pair(1.0, bits % 2 == 0 ? lower : upper),
              std::pair(1 + 0x1p-40, upper)}) {
          change.push_back(sign * middle * factor);
          expected.push_back({static_cast<std::uint16_t>(nearest.bits | sign_bit)});
        }
      }
    }
    ParameterSet set = one_array(std::vector<Half>(change.size()));
    OuterOptimizer(FedAvg{}).step(set, {change});
    for (std::size_t i = 0; i < change.size(); ++i)
      ASSERT_EQ(set[0].values<Half>()[i].bits, expected[i].bits) << change[i];
  };
  check(std::type_identity<float16>{}, 0x7c00);
  check(std::type_identity<bfloat16>{}, 0x7f80);
}

TEST(OuterOptimizer, LetsHalvesAndFloatsOverflowToInfinity) {
  for (const double far : {1e300, -1e300, 1e39, -1e39}) {
    ParameterSet set;
    add_array(set, "half", std::vector<float16>(1));
    add_array(set, "brain", std::vector<bfloat16>(1));
    add_array(set, "single", std::vector<float>(1));
    OuterOptimizer(FedAvg{}).step(set, {{far}, {far}, {far}});
    const float infinity = std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(far));
    EXPECT_EQ(set[0].values<float16>()[0].to_float(), infinity);
    EXPECT_EQ(set[1].values<bfloat16>()[0].to_float(), infinity);
    EXPECT_EQ(set[2].values<float>()[0], infinity);
  }
}

TEST(OuterOptimizer, LeavesWhatDoesNotChangeAsItIsToTheBit) {
  ParameterSet parameters;
  add_array<float>(parameters, "single", {-INFINITY, -NAN, -0.0F});
  add_array<double>(parameters, "double", {INFINITY, -NAN, -0.0});
  add_array<float16>(parameters, "half", {{0xfc00}, {0x7d01}, {0x8000}});
  add_array<bfloat16>(parameters, "brain", {{0xff80}, {0x7f81}, {0x8000}});
  const ParameterSet first = parameters;
  std::vector<FederatedAggregation> rules = kWithMoments;
  rules.insert(rules.end(), kWithout.begin(), kWithout.end());
  for (const FederatedAggregation& rule : rules) {
    OuterOptimizer(rule).step(parameters, Change(4, {0, 0, 0}));
    EXPECT_TRUE(parameters == first) << rule.index();
  }
}

TEST(OuterOptimizer, RoundsIntegersAndEndsWhereTheirTypeDoes) {
  std::vector<FederatedAggregation> rules = kWithMoments;
  rules.insert(rules.end(), kWithout.begin(), kWithout.end());
  constexpr std::int64_t kLarge = (std::int64_t{1} << 62) + 1;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  for (const FederatedAggregation& rule : rules) {
    ParameterSet set;
    add_array(set, "long", std::vector<std::int64_t>{10, 10, -10, kLarge, kLarge, kMax - 1, kMin, 0, -1});
    add_array(set, "short", std::vector<std::int32_t>{5, -5, 2'000'000'000, -2'000'000'000});
    OuterOptimizer(rule).step(set, {{2.4, 2.5, -0.6, 0, 3.2, 5, -1e30, 0x1p63, -0x1p63}, {0.5, -0.4, 2e9, -2e9}});
    EXPECT_THAT(set[0].values<std::int64_t>(), ElementsAre(12, 13, -11, kLarge, kLarge + 3, kMax, kMin, kMax, kMin));
    EXPECT_THAT(set[1].values<std::int32_t>(),
                ElementsAre(6, -5, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()));
  }
}

TEST(OuterOptimizer, ChangesBuffersByTheMeanItself) {
  for (const FederatedAggregation& rule : kWithMoments) {
    ParameterSet set;
    add_array(set, "weight", std::vector<float>{1});
    add_array(set, "running_mean", std::vector<float>{1, 2});
    add_array(set, "batches", std::vector<std::int64_t>{7});
    OuterOptimizer optimizer(rule, {true, false, false});
    for (int step = 0; step < 3; ++step) optimizer.step(set, {{0.5}, {0.5, -0.25}, {2}});
    EXPECT_NE(set[0].values<float>()[0], 2.5f);
    EXPECT_THAT(set[1].values<float>(), ElementsAre(2.5f, 1.25f));
    EXPECT_THAT(set[2].values<std::int64_t>(), ElementsAre(13));
    ParameterSet saved;
    optimizer.save(saved, set, "");
    for (const NamedArray& array : saved) EXPECT_THAT(array.name(), ::testing::EndsWith("/weight"));
  }
}

// --- checkpoints ---

TEST(OuterOptimizer, GoesOnToTheBitFromWhatItSaved) {
  std::vector<FederatedAggregation> rules = kWithMoments;
  rules.insert(rules.end(), kWithout.begin(), kWithout.end());
  for (std::size_t which = 0; which < rules.size(); ++which) {
    for (const int saved_after : {0, 1, 7}) {
      SCOPED_TRACE("rule " + std::to_string(which) + ", saved after " + std::to_string(saved_after));
      const auto change = [](std::uint64_t step) {
        RandomStream draws({step});
        Change result = {std::vector<double>(6), {}, std::vector<double>(1), std::vector<double>(2)};
        for (std::vector<double>& array : result) {
          for (double& number : array) number = draws.normal();
        }
        return result;
      };
      ParameterSet set;
      set.add({.name = "hidden.weight", .shape = {2, 3}});
      set.add({.name = "empty", .shape = {0}});
      set.add({.name = "scale", .shape = {}, .type = DataType::float16});
      set.add({.name = "steps", .shape = {2}, .type = DataType::int64});
      OuterOptimizer optimizer(rules[which]);
      for (int step = 0; step < saved_after; ++step) optimizer.step(set, change(static_cast<std::uint64_t>(step)));
      ParameterSet saved;
      saved.add({.name = "hidden.weight"});  // somebody else's
      optimizer.save(saved, set, "server/");
      ParameterSet again = set;
      OuterOptimizer restored(rules[which]);
      restored.step(again, change(99));  // forgotten
      again = set;
      restored.restore(saved, again, "server/");
      for (int step = saved_after; step < 12; ++step) {
        optimizer.step(set, change(static_cast<std::uint64_t>(step)));
        restored.step(again, change(static_cast<std::uint64_t>(step)));
        ASSERT_EQ(again, set);
      }
      ParameterSet of_first;
      ParameterSet of_second;
      optimizer.save(of_first, set, "");
      restored.save(of_second, again, "");
      EXPECT_EQ(of_first, of_second);
    }
  }
}

TEST(OuterOptimizer, SavesMomentsUnderTheNamesOfParameters) {
  const auto saved = [](const FederatedAggregation& rule, int steps) {
    ParameterSet set = one_array<float>({1, 2});
    set.add({.name = "bias", .shape = {1, 1}});
    OuterOptimizer optimizer(rule);
    for (int step = 0; step < steps; ++step) optimizer.step(set, {{1, 2}, {3}});
    ParameterSet arrays;
    optimizer.save(arrays, set, "server/");
    for (const NamedArray& array : arrays) EXPECT_EQ(array.type(), DataType::float64);
    return arrays;
  };
  EXPECT_THAT(saved(FedAvgM{}, 1).names(), ElementsAre("server/momentum/weight", "server/momentum/bias"));
  EXPECT_THAT(saved(FedAdagrad{}, 1).names(), ElementsAre("server/variance/weight", "server/variance/bias"));
  for (const FederatedAggregation& rule : {FederatedAggregation(FedAdam{}), FederatedAggregation(FedYogi{})}) {
    EXPECT_THAT(saved(rule, 2).names(), ElementsAre("server/momentum/weight", "server/momentum/bias",
                                                    "server/variance/weight", "server/variance/bias"));
    EXPECT_THAT(saved(rule, 0).names(), IsEmpty());
  }
  EXPECT_EQ(saved(FedAvgM{}, 1).at("server/momentum/bias").shape(), (Shape{1, 1}));
  EXPECT_THAT(saved(FedAvgM{}, 1).at("server/momentum/weight").values<double>(), ElementsAre(1, 2));
  for (const FederatedAggregation& rule : kWithout) EXPECT_THAT(saved(rule, 2).names(), IsEmpty());
}

TEST(OuterOptimizer, RefusesMomentsThatAreNotItsOwnAndKeepsWhatItHas) {
  ParameterSet set = one_array<float>({1, 2});
  set.add({.name = "bias", .shape = {1}});
  OuterOptimizer optimizer(FedAdam{});
  optimizer.step(set, {{1, 2}, {3}});
  ParameterSet before;
  optimizer.save(before, set, "");
  // Of all that belongs there, without one array or with another in its place.
  const auto message = [&](const std::string& name, const ParameterLayout* other) {
    ParameterSet arrays;
    for (const NamedArray& array : before) {
      if (array.name() != name) arrays.add(array.name(), array.shape(), array.array());
    }
    if (other != nullptr) arrays.add(*other);
    const std::string result = usage_error([&] { optimizer.restore(arrays, set, ""); });
    ParameterSet after;
    optimizer.save(after, set, "");
    EXPECT_EQ(after, before);
    return result;
  };
  EXPECT_EQ(message("momentum/bias", nullptr), R"("momentum/bias" is missing, and others are there)");
  EXPECT_EQ(message("variance/weight", nullptr), R"("variance/weight" is missing, and others are there)");
  const ParameterLayout longer{.name = "variance/weight", .shape = {3}, .type = DataType::float64};
  EXPECT_EQ(message("variance/weight", &longer), R"("variance/weight": expected float64 [2], found float64 [3])");
  const ParameterLayout single{.name = "variance/weight", .shape = {2}};
  EXPECT_EQ(message("variance/weight", &single), R"("variance/weight": expected float64 [2], found float32 [2])");

  ParameterSet momentum_alone;
  for (std::size_t i = 0; i < 2; ++i) momentum_alone.add(before[i].name(), before[i].shape(), before[i].array());
  EXPECT_EQ(usage_error([&] { optimizer.restore(momentum_alone, set, ""); }),
            R"("variance/weight" is missing, and others are there)");
}

// --- shapes ---

TEST(OuterOptimizer, RefusesOtherShapesAndChangesNothing) {
  for (const FederatedAggregation& rule : {FederatedAggregation(FedAvg{}), FederatedAggregation(FedYogi{})}) {
    ParameterSet set = one_array<float>({1, 2});
    const ParameterSet before = set;
    OuterOptimizer optimizer(rule);
    EXPECT_EQ(usage_error([&] { optimizer.step(set, {}); }), "expected a change of 1 arrays, found 0");
    EXPECT_EQ(usage_error([&] { optimizer.step(set, {{1, 2}, {}}); }), "expected a change of 1 arrays, found 2");
    EXPECT_EQ(usage_error([&] {
                optimizer.step(set, {{1, 2, 3}});
              }),
              R"("weight": expected a change of 2 numbers, found 3)");
    EXPECT_EQ(usage_error([&] {
                OuterOptimizer(rule, {true, false}).step(set, {{1, 2}});
              }),
              "expected is_trained of 1 arrays, found 2");
    EXPECT_EQ(set, before);
  }
  OuterOptimizer optimizer(FedAvgM{});
  ParameterSet set = one_array<float>({1, 2});
  ParameterSet other = one_array<float>({1, 2, 3});
  optimizer.step(set, {{1, 2}});
  EXPECT_EQ(usage_error([&] { optimizer.step(other, {{1, 2, 3}}); }), "earlier steps were those of other parameters");
  EXPECT_THAT(other[0].values<float>(), ElementsAre(1, 2, 3));
  ParameterSet arrays;
  EXPECT_EQ(usage_error([&] { optimizer.save(arrays, {}, ""); }), "expected parameters of 1 arrays, found 0");
}

}  // namespace
}  // namespace tutti
