#include <tutti/coordinate/distributed_gradients_coordinator.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/eventually.hpp"
#include "support/one_array.hpp"
#include "support/scripted_rules.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::doubles;
using ::testing::ElementsAre;
using testing::error_of;
using testing::eventually;
using testing::GatedRule;
using ::testing::HasSubstr;
using testing::is_asleep;
using testing::numbers_of;
using testing::one_array;
using ::testing::Pair;
using testing::RememberingRule;
using testing::UnluckyRule;
using testing::usage_error;
using Coordinator = DistributedGradientsCoordinator;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double number_of(const Coordinator& coordinator) { return numbers_of(coordinator.get_model_parameters())[0]; }

// A coordinator whose first change has begun, and waits to go on.
struct Gated {
  explicit Gated(GradientsCoordinatorOptions options)
      : rule(new GatedRule), coordinator(std::unique_ptr<UpdateRule>(rule), options) {
    coordinator.set_model_parameters(doubles({0}));
    coordinator.start();
    coordinator.add_gradients(doubles({1}));
    rule->begun.wait();
  }
  ~Gated() { go_on(); }

  void go_on() {
    if (!rule->goes_on.try_wait()) rule->goes_on.count_down();
  }

  GatedRule* rule;
  Coordinator coordinator;
};

// --- what gradients do ---

TEST(DistributedGradientsCoordinator, DescendsAndAscends) {
  for (const GradientChangeMode mode : {GradientChangeMode::descent, GradientChangeMode::ascent}) {
    Coordinator coordinator(Sgd{.lr = 0.5}, {.mode = mode});
    coordinator.set_model_parameters(doubles({10, 20}));
    coordinator.start();
    coordinator.add_gradients(doubles({2, 4}));
    coordinator.add_gradients(doubles({2, 0}), {.weight = 3});
    coordinator.stop();
    if (mode == GradientChangeMode::descent)
      EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(6, 18));
    else
      EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(14, 22));
    EXPECT_EQ(coordinator.version(), 2);
  }
}

TEST(DistributedGradientsCoordinator, DescendsUnlessItIsToldOtherwise) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.start();
  coordinator.add_gradients(doubles({1}));
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), -1);
}

TEST(DistributedGradientsCoordinator, TurnsAroundWhileItRuns) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.start();
  double expected = 0;
  for (int i = 0; i < 20; ++i) {
    const bool ascends = i % 3 == 1;
    coordinator.set_parameters(ascends ? GradientChangeMode::ascent : GradientChangeMode::descent);
    coordinator.add_gradients(doubles({1.0 + i}));
    ASSERT_TRUE(eventually([&] { return coordinator.pending() == 0; }));
    expected += (ascends ? 1 : -1) * (1.0 + i);
    EXPECT_EQ(number_of(coordinator), expected);
  }
  coordinator.stop();
}

TEST(DistributedGradientsCoordinator, FollowsAScheduleOfRates) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.set_rate_factor(0.5);
  coordinator.add_gradients(doubles({1}));
  coordinator.add_gradients(doubles({1}), {.rate_factor = 4});
  coordinator.start();
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), -2.5);
  for (const double factor : {-1.0, kNan, kInfinity})
    EXPECT_THAT(usage_error([&] { coordinator.set_rate_factor(factor); }), HasSubstr("rate_factor: expected a number"));
}

// The rules themselves are held against plain loops in update_rule_test.cpp.
TEST(DistributedGradientsCoordinator, ChangesTheModelAsTheRuleByItselfWould) {
  for (const OptimizerRule& rule :
       std::vector<OptimizerRule>{Sgd{.lr = 0.1}, Sgd{.lr = 0.1, .momentum = 0.9}, Adam{}, Adagrad{}}) {
    RandomStream draws({5});
    ParameterSet loop = doubles({1, 2, 3});
    const std::unique_ptr<UpdateRule> its = make_update_rule(rule);
    its->prepare(loop);
    Coordinator coordinator(rule);
    coordinator.set_model_parameters(loop);
    coordinator.start();
    for (int i = 0; i < 30; ++i) {
      const ParameterSet gradients = doubles({draws.normal(), draws.normal(), draws.normal()});
      its->apply(loop, gradients, {});
      coordinator.add_gradients(gradients);
    }
    coordinator.stop();
    EXPECT_TRUE(coordinator.get_model_parameters() == loop) << to_string(rule);
  }
}

TEST(DistributedGradientsCoordinator, TakesARuleOfOnesOwn) {
  // The sign of a gradient alone counts, and integers change, too.
  struct Signs : UpdateRule {
    void prepare(const ParameterSet& parameters) override { prepared = parameters.names(); }
    void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
      parameters[0].values<float>()[0] -= std::copysign(1.0f, gradients[0].values<float>()[0]);
      parameters[1].values<std::int64_t>()[0] += gradients[1].values<std::int64_t>()[0];
      scales.push_back(step.gradient_scale);
    }
    std::vector<std::string> prepared;
    std::vector<double> scales;
  };
  const auto set = [](float number, std::int64_t count) {
    ParameterSet its = one_array<float>({number}, "number");
    const std::vector<std::int64_t> counts = {count};
    its.add("count", {1}, counts);
    return its;
  };
  auto owned = std::make_unique<Signs>();
  const Signs& rule = *owned;
  Coordinator coordinator(std::move(owned), {.mode = GradientChangeMode::ascent});
  coordinator.set_model_parameters(set(10, 100));
  EXPECT_THAT(rule.prepared, ElementsAre("number", "count"));
  coordinator.start();
  coordinator.add_gradients(set(1e-9f, 5));
  coordinator.add_gradients(set(1e9f, -7), {.weight = 0.5});
  coordinator.stop();
  EXPECT_TRUE(coordinator.get_model_parameters() == set(8, 98));
  EXPECT_THAT(rule.scales, ElementsAre(-1, -0.5));
}

TEST(DistributedGradientsCoordinator, AppliesGradientsInTheirOrder) {
  auto owned = std::make_unique<RememberingRule>();
  const RememberingRule& rule = *owned;
  Coordinator coordinator(std::move(owned), {.capacity = 4});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.start();
  std::vector<double> expected;
  for (int i = 0; i < 200; ++i) {
    coordinator.add_gradients(doubles({1.0 * i}));
    expected.push_back(i);
  }
  coordinator.stop();
  EXPECT_EQ(rule.seen, expected);
}

TEST(DistributedGradientsCoordinator, TakesOneArrayWhereTheModelHasOne) {
  Coordinator coordinator(Sgd{.lr = 1});
  const std::vector<double> two = {1, 2};
  EXPECT_EQ(usage_error([&] { coordinator.add_gradients(two); }),
            "there are no parameters yet that gradients could change");
  coordinator.set_model_parameters(doubles({0, 0}));
  coordinator.add_gradients(two);
  coordinator.add_gradients(two, {.weight = 2});
  coordinator.start();
  coordinator.stop();
  EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(-3, -6));
  const std::vector<double> three(3);
  EXPECT_EQ(usage_error([&] { coordinator.add_gradients(three); }),
            "these gradients are not of this model: \"weight\" is float64 [3], expected float64 [2]");
  const std::vector<float> floats(2);
  EXPECT_EQ(usage_error([&] { coordinator.add_gradients(floats); }),
            "these gradients are not of this model: \"weight\" is float32 [2], expected float64 [2]");
  Coordinator larger(Sgd{.lr = 1});
  ParameterSet model = doubles({0});
  model.add({.name = "bias", .shape = {1}, .type = DataType::float64});
  larger.set_model_parameters(std::move(model));
  EXPECT_EQ(usage_error([&] { larger.add_gradients(two); }),
            "the model has 2 arrays: expected gradients of all of them, by name");
}

TEST(DistributedGradientsCoordinator, TakesNamedGradientsInAnyOrder) {
  const auto set = [](const std::vector<std::pair<std::string, double>>& numbers) {
    ParameterSet its;
    for (const auto& [name, number] : numbers) its.add(name, {1}, ConstArray(&number, 1, DataType::float64));
    return its;
  };
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(set({{"a", 10}, {"b", 20}, {"c", 30}}));
  coordinator.add_gradients(set({{"c", 3}, {"a", 1}, {"b", 2}}));
  coordinator.start();
  coordinator.stop();
  EXPECT_TRUE(coordinator.get_model_parameters() == set({{"a", 9}, {"b", 18}, {"c", 27}}));
  for (const ParameterSet& other :
       {set({{"c", 3}, {"a", 1}, {"d", 2}}), set({{"c", 3}, {"a", 1}}), set({{"c", 3}, {"a", 1}, {"b", 2}, {"d", 2}})})
    EXPECT_THAT(usage_error([&] { coordinator.add_gradients(other); }),
                HasSubstr("these gradients are not of this model"));
}

// --- the model ---

TEST(DistributedGradientsCoordinator, CopiesItsModelOrHandsItOut) {
  Coordinator coordinator(Sgd{.lr = 1});
  EXPECT_TRUE(coordinator.get_model_parameters().empty());
  EXPECT_EQ(coordinator.snapshot().parameters, nullptr);
  const auto given = std::make_shared<const ParameterSet>(doubles({1}));
  coordinator.set_model_parameters(given);
  EXPECT_EQ(coordinator.snapshot().parameters, given);
  ParameterSet copy = coordinator.get_model_parameters();
  copy[0].values<double>()[0] = 99;
  coordinator.add_gradients(doubles({1}));
  coordinator.start();
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), 0);
  EXPECT_THAT(numbers_of(*given), ElementsAre(1));
}

TEST(DistributedGradientsCoordinator, TakesAnotherModelWhileItRuns) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(doubles({1}));
  coordinator.start();
  coordinator.add_gradients(doubles({1}));
  ASSERT_TRUE(eventually([&] { return coordinator.pending() == 0; }));
  coordinator.set_model_parameters(doubles({100}));
  coordinator.add_gradients(doubles({1}));
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), 99);
  EXPECT_EQ(coordinator.version(), 3);
}

TEST(DistributedGradientsCoordinator, RefusesAModelThatCannotBe) {
  Coordinator coordinator(Sgd{.lr = 1});
  const auto refused = [&](ParameterSet set) {
    return usage_error([&] { coordinator.set_model_parameters(std::move(set)); });
  };
  EXPECT_EQ(refused({}), "expected parameters, found a set without arrays");
  EXPECT_EQ(refused(doubles({1, kInfinity})), "\"weight\" has numbers that are infinite or not a number");
  EXPECT_EQ(refused(one_array<std::int64_t>({1})), "\"weight\": an optimizer changes float32 or float64, found int64");
  EXPECT_EQ(usage_error([&] { coordinator.set_model_parameters(std::shared_ptr<const ParameterSet>()); }),
            "expected parameters, found none");
  coordinator.set_model_parameters(doubles({1, 2}));
  EXPECT_THAT(refused(doubles({1})), HasSubstr("these parameters are of another model"));
  EXPECT_THAT(refused(doubles({1, 2}, "bias")), HasSubstr("these parameters are of another model"));
  EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(1, 2));
  EXPECT_EQ(coordinator.version(), 0);
}

TEST(DistributedGradientsCoordinator, GivesReadersOneWholeVersion) {
  for (const bool in_place : {false, true}) {
    struct CountsUp : UpdateRule {
      explicit CountsUp(bool its) : in_place(its) {}
      void apply(ParameterSet& parameters, const ParameterSet&, const UpdateStep&) override {
        for (NamedArray& array : parameters) {
          for (double& value : array.values<double>()) ++value;
        }
      }
      bool never_fails() const override { return in_place; }
      bool in_place;
    };
    constexpr int kEach = 1000;
    ParameterSet model;
    for (const char* name : {"a", "b", "c"}) model.add({.name = name, .shape = {50}, .type = DataType::float64});
    const auto gradients = std::make_shared<const ParameterSet>(model);
    Coordinator coordinator(std::make_unique<CountsUp>(in_place));
    coordinator.set_model_parameters(std::move(model));
    coordinator.start();
    std::atomic<int> adding = 2;
    std::vector<std::jthread> threads;
    for (int producer = 0; producer < 2; ++producer) {
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) coordinator.add_gradients(gradients);
        --adding;
      });
    }
    threads.emplace_back([&] {
      ModelSnapshot held = coordinator.snapshot();
      while (adding > 0) {
        ModelSnapshot now = coordinator.snapshot();
        for (const ModelSnapshot& snapshot : {now, held}) {
          for (const NamedArray& array : *snapshot.parameters) {
            for (const double value : array.values<double>()) ASSERT_EQ(value, snapshot.version);
          }
        }
        if (now.version > held.version + 10) held = std::move(now);
      }
    });
    threads.clear();
    coordinator.stop();
    EXPECT_EQ(coordinator.version(), 2 * kEach);
  }
}

// --- what is refused ---

TEST(DistributedGradientsCoordinator, RefusesWhatCannotBe) {
  EXPECT_EQ(usage_error([] { Coordinator(Sgd{}, {.capacity = 0}); }),
            "capacity: expected room for at least one set of gradients, found 0");
  EXPECT_EQ(usage_error([] { Coordinator(Sgd{}, {.staleness = {.delay_compensation = kNan}}); }),
            "delay_compensation: expected a number from 0 on, found nan");
  EXPECT_EQ(usage_error([] { Coordinator(std::unique_ptr<UpdateRule>()); }),
            "expected a rule by which gradients change parameters, found none");
}

TEST(DistributedGradientsCoordinator, IsNotTouchedByGradientsThatItRefuses) {
  Coordinator coordinator(Sgd{.lr = 1});
  EXPECT_EQ(usage_error([&] { coordinator.add_gradients(doubles({1})); }),
            "there are no parameters yet that gradients could change");
  coordinator.set_model_parameters(doubles({1, 2}));
  const CoordinatorRun run = coordinator.start();
  const auto refused = [&](ParameterSet set, const GradientOrigin& origin = {}) {
    return usage_error([&] { coordinator.add_gradients(std::move(set), origin); });
  };
  for (const double bad : {kNan, kInfinity, -kInfinity})
    EXPECT_EQ(refused(doubles({1, bad})), "\"weight\" has gradients that are infinite or not a number");
  EXPECT_THAT(refused(doubles({1, 1}, "bias")), HasSubstr("these gradients are not of this model"));
  EXPECT_THAT(refused(doubles({1, 1, 1})), HasSubstr("these gradients are not of this model"));
  EXPECT_THAT(refused(one_array<float>({1, 1})), HasSubstr("these gradients are not of this model"));
  EXPECT_THAT(refused({}), HasSubstr("these gradients are not of this model"));
  EXPECT_EQ(refused(doubles({1, 1}), {.weight = kInfinity}), "expected a weight that is finite, found inf");
  EXPECT_EQ(refused(doubles({1, 1}), {.rate_factor = kNan}), "rate_factor: expected a number from 0 on, found nan");
  EXPECT_EQ(refused(doubles({1, 1}), {.base = {.version = -1}}), "expected a version from 0 on, found -1");
  const ModelSnapshot other{.parameters = std::make_shared<const ParameterSet>(doubles({1}))};
  EXPECT_EQ(refused(doubles({1, 1}), {.base = other}), "these gradients are of parameters of another model");
  EXPECT_EQ(usage_error([&] { coordinator.add_gradients(std::shared_ptr<const ParameterSet>()); }),
            "expected gradients, found none");
  EXPECT_EQ(coordinator.pending(), 0u);
  coordinator.add_gradients(doubles({1, 1}));
  coordinator.stop();
  run.wait();
  EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(0, 1));
  EXPECT_EQ(coordinator.version(), 1);
}

// Finite as a double, and none that a float can be multiplied by.
TEST(DistributedGradientsCoordinator, RefusesWeightsAndRatesBeyondTheNumbersOfTheModel) {
  const auto floats = [] { return one_array<float>({1, 0}); };
  for (const OptimizerRule& rule : std::vector<OptimizerRule>{Sgd{.lr = 10}, Adam{.lr = 10}, AdamW{.lr = 10}}) {
    Coordinator coordinator(rule);
    coordinator.set_model_parameters(floats());
    const CoordinatorRun run = coordinator.start();
    const auto refused = [&](const GradientOrigin& origin) {
      return usage_error([&] { coordinator.add_gradients(floats(), origin); });
    };
    for (const double weight : {1e39, -1e39})
      EXPECT_THAT(refused({.weight = weight}), HasSubstr("expected a weight up to 3.4e+38"));
    EXPECT_THAT(refused({.rate_factor = 1e38}), HasSubstr("lr: expected steps of 3.4e+38 at the most"));
    EXPECT_THAT(refused({.rate_factor = 1e308}), HasSubstr("lr: expected"));
    EXPECT_THAT(usage_error([&] { coordinator.set_rate_factor(1e300); }), HasSubstr("lr: expected"));
    coordinator.set_rate_factor(1e20);
    EXPECT_THAT(refused({.rate_factor = 1e20}), HasSubstr("lr: expected"));  // both together
    coordinator.set_rate_factor(0);
    coordinator.add_gradients(floats(), {.weight = 1e38});
    coordinator.stop();
    run.wait();
    EXPECT_TRUE(coordinator.get_model_parameters() == floats()) << to_string(rule);
  }
  Coordinator doubled(Sgd{.lr = 1e-300});
  doubled.set_model_parameters(doubles({0}));
  doubled.set_rate_factor(1e250);
  doubled.add_gradients(doubles({1}), {.weight = 1e50});
  doubled.start();
  doubled.stop();
  EXPECT_DOUBLE_EQ(number_of(doubled), -1);
}

// A rate that gradients found good may be turned up before they are applied: then the run ends with them.
TEST(DistributedGradientsCoordinator, EndsWhereARateIsTurnedUpTooFarBesideWhatWaits) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(one_array<float>({1}));
  coordinator.add_gradients(one_array<float>({1}), {.rate_factor = 1e30});
  coordinator.set_rate_factor(1e30);
  coordinator.start();
  EXPECT_THAT(error_of([&] { coordinator.stop(); }), HasSubstr("lr: expected steps"));
  EXPECT_TRUE(coordinator.get_model_parameters() == one_array<float>({1}));
}

TEST(DistributedGradientsCoordinator, RefusesARuleThatMakesAnotherModel) {
  struct Grows : UpdateRule {
    void apply(ParameterSet& parameters, const ParameterSet&, const UpdateStep&) override {
      parameters.add({.name = "more"});
    }
  };
  Coordinator coordinator(std::make_unique<Grows>());
  coordinator.set_model_parameters(doubles({1}));
  coordinator.start();
  coordinator.add_gradients(doubles({1}));
  EXPECT_EQ(error_of([&] { coordinator.stop(); }), "the rule has made a model of other names, shapes or types");
  EXPECT_TRUE(coordinator.get_model_parameters() == doubles({1}));
}

// --- start and stop ---

TEST(DistributedGradientsCoordinator, RefusesToStartWithoutParametersOrTwice) {
  Coordinator coordinator(Sgd{.lr = 1});
  EXPECT_EQ(usage_error([&] { coordinator.start(); }),
            "there are no parameters: expected set_model_parameters() first");
  coordinator.set_model_parameters(doubles({0}));
  const CoordinatorRun run = coordinator.start();
  EXPECT_EQ(usage_error([&] { coordinator.start(); }), "it was started already");
  coordinator.add_gradients(doubles({1}));
  coordinator.stop();
  EXPECT_TRUE(run.has_ended());
  EXPECT_EQ(number_of(coordinator), -1);
}

TEST(DistributedGradientsCoordinator, StartsAndStopsAgainAndAgain) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.stop();  // nothing runs
  for (int i = 1; i <= 50; ++i) {
    coordinator.add_gradients(doubles({1}));  // before it runs
    const CoordinatorRun run = coordinator.start();
    coordinator.add_gradients(doubles({1}));
    coordinator.stop();
    run.wait(0s);
    coordinator.stop();
    EXPECT_EQ(number_of(coordinator), -2 * i);
    EXPECT_EQ(coordinator.pending(), 0u);
  }
}

TEST(DistributedGradientsCoordinator, AppliesAllThatWasAddedBeforeItStops) {
  Coordinator coordinator(Sgd{.lr = 1}, {.capacity = 100});
  coordinator.set_model_parameters(doubles({0}));
  for (int i = 0; i < 100; ++i) coordinator.add_gradients(doubles({1}));
  EXPECT_EQ(coordinator.pending(), 100u);
  coordinator.start();
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), -100);
  EXPECT_EQ(coordinator.pending(), 0u);
}

TEST(DistributedGradientsCoordinator, MayBeStoppedByManyAtATime) {
  for (int run = 0; run < 50; ++run) {
    Coordinator coordinator(Sgd{.lr = 1});
    coordinator.set_model_parameters(doubles({0}));
    const CoordinatorRun handle = coordinator.start();
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        coordinator.add_gradients(doubles({1}));
        coordinator.stop();
      });
    }
    threads.clear();
    EXPECT_TRUE(handle.has_ended());
    // What came when it had stopped already waits for the next start.
    EXPECT_EQ(-number_of(coordinator) + static_cast<double>(coordinator.pending()), 3);
    coordinator.start();
    coordinator.stop();
    EXPECT_EQ(number_of(coordinator), -3);
  }
}

TEST(DistributedGradientsCoordinator, EachStopAppliesWhatWasAddedBeforeIt) {
  Gated gated({.deadline = 1ms});
  EXPECT_THAT(error_of([&] { gated.coordinator.stop(); }), HasSubstr("has not ended"));
  gated.coordinator.add_gradients(doubles({2}));
  EXPECT_THAT(error_of([&] { gated.coordinator.stop(); }), HasSubstr("has not ended"));
  gated.go_on();
  ASSERT_TRUE(eventually([&] { return error_of([&] { gated.coordinator.stop(); }) == "(no error)"; }));
  EXPECT_EQ(number_of(gated.coordinator), -3);
}

TEST(DistributedGradientsCoordinator, HasAStopThatGivesUpInTime) {
  Gated gated({.deadline = 5ms});
  EXPECT_EQ(error_of([&] { gated.coordinator.stop(); }), "the coordinator has not ended within 5 ms");
  gated.go_on();
  ASSERT_TRUE(eventually([&] { return gated.coordinator.version() == 1; }));
  ASSERT_TRUE(eventually([&] { return error_of([&] { gated.coordinator.stop(); }) == "(no error)"; }));
}

TEST(DistributedGradientsCoordinator, RefusesToWaitForItself) {
  struct Stops : UpdateRule {
    void apply(ParameterSet&, const ParameterSet&, const UpdateStep&) override { coordinator->stop(); }
    Coordinator* coordinator = nullptr;
  };
  auto owned = std::make_unique<Stops>();
  Stops& rule = *owned;
  Coordinator coordinator(std::move(owned));
  rule.coordinator = &coordinator;
  coordinator.set_model_parameters(doubles({0}));
  const CoordinatorRun run = coordinator.start();
  coordinator.add_gradients(doubles({1}));
  EXPECT_EQ(usage_error([&] { run.wait(); }), "stop() waits for the thread of the coordinator, and was called on it");
}

TEST(DistributedGradientsCoordinator, GivesAHandleToWaitOn) {
  std::optional<CoordinatorRun> run;
  {
    Coordinator coordinator(Sgd{.lr = 1});
    coordinator.set_model_parameters(doubles({0}));
    run = coordinator.start();
    EXPECT_FALSE(run->has_ended());
    EXPECT_EQ(error_of([&] { run->wait(1ms); }), "the coordinator has not ended within 1 ms");
    auto waits = std::async(std::launch::async, [its = *run] { its.wait(Duration::max()); });
    coordinator.add_gradients(doubles({1}));
    coordinator.stop();
    waits.get();
  }
  EXPECT_TRUE(run->has_ended());
  run->wait(0s);
}

// --- rules that throw ---

TEST(DistributedGradientsCoordinator, EndsARunWithWhatTheRuleThrows) {
  Coordinator coordinator(std::make_unique<UnluckyRule>());
  coordinator.set_model_parameters(doubles({0}));
  coordinator.add_gradients(doubles({1}));
  coordinator.add_gradients(doubles({UnluckyRule::kUnlucky}));
  coordinator.add_gradients(doubles({2}));
  const CoordinatorRun run = coordinator.start();
  EXPECT_THROW(run.wait(), std::runtime_error);
  EXPECT_THROW(coordinator.stop(), std::runtime_error);
  EXPECT_THROW(coordinator.stop(), std::runtime_error);
  EXPECT_EQ(number_of(coordinator), -1);
  EXPECT_EQ(coordinator.version(), 1);
  EXPECT_EQ(coordinator.pending(), 1u);
  coordinator.start();
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), -3);
}

TEST(DistributedGradientsCoordinator, StartsAtOnceAfterARunThatFailed) {
  Coordinator coordinator(std::make_unique<UnluckyRule>());
  coordinator.set_model_parameters(doubles({0}));
  for (int i = 0; i < 200; ++i) {
    const CoordinatorRun run = coordinator.start();
    coordinator.add_gradients(doubles({UnluckyRule::kUnlucky}));
    EXPECT_THROW(run.wait(), std::runtime_error);
  }
  coordinator.start();
  coordinator.add_gradients(doubles({1}));
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), -1);
}

TEST(DistributedGradientsCoordinator, TellsWhoWaitsForRoomThatTheRunHasFailed) {
  Coordinator coordinator(std::make_unique<UnluckyRule>(), {.capacity = 1});
  coordinator.set_model_parameters(doubles({0}));
  auto waits = std::async(std::launch::async, [&] {
    return error_of([&] {
      while (true) coordinator.add_gradients(doubles({1}));
    });
  });
  ASSERT_TRUE(eventually([&] { return coordinator.pending() == 1; }));
  coordinator.clear_gradients();
  const CoordinatorRun run = coordinator.start();
  // Between those of the other thread, and as soon as there is room.
  coordinator.add_gradients(doubles({UnluckyRule::kUnlucky}));
  EXPECT_EQ(waits.get(), "1 sets of gradients wait already, and the run has ended: thirteen");
  EXPECT_THROW(run.wait(), std::runtime_error);
}

// --- a queue that is full ---

TEST(DistributedGradientsCoordinator, HasSendersWaitForRoom) {
  Gated gated({.capacity = 2});
  for (int i = 0; i < 2; ++i) gated.coordinator.add_gradients(doubles({10}));
  EXPECT_EQ(gated.coordinator.pending(), 3u);
  auto waits = std::async(std::launch::async, [&] { gated.coordinator.add_gradients(doubles({100})); });
  gated.go_on();
  waits.get();
  gated.coordinator.stop();
  EXPECT_EQ(number_of(gated.coordinator), -121);
}

TEST(DistributedGradientsCoordinator, RefusesWhereThereIsNoRoomInTime) {
  Gated gated({.capacity = 1, .deadline = 5ms});
  gated.coordinator.add_gradients(doubles({10}));
  EXPECT_EQ(error_of([&] { gated.coordinator.add_gradients(doubles({100})); }),
            "1 sets of gradients wait already, and there was no room for 5 ms");
  EXPECT_EQ(gated.coordinator.pending(), 2u);
  gated.go_on();
  ASSERT_TRUE(eventually([&] { return gated.coordinator.pending() == 0; }));
  EXPECT_EQ(number_of(gated.coordinator), -11);
}

TEST(DistributedGradientsCoordinator, RefusesAtOnceWhereItIsToldTo) {
  Gated gated({.capacity = 1, .when_full = WhenFull::refuse});
  gated.coordinator.add_gradients(doubles({10}));
  EXPECT_EQ(error_of([&] { gated.coordinator.add_gradients(doubles({100})); }), "1 sets of gradients wait already");
  gated.go_on();
  gated.coordinator.stop();
  EXPECT_EQ(number_of(gated.coordinator), -11);
}

TEST(DistributedGradientsCoordinator, MergesIntoTheNewestWhereItIsToldTo) {
  Gated gated({.capacity = 2, .when_full = WhenFull::merge});
  const auto shared = std::make_shared<const ParameterSet>(doubles({100}));
  gated.coordinator.add_gradients(doubles({10}));
  gated.coordinator.add_gradients(shared);
  gated.coordinator.add_gradients(shared);
  gated.coordinator.add_gradients(doubles({100}), {.weight = 3});
  EXPECT_EQ(gated.coordinator.pending(), 5u);
  gated.go_on();
  gated.coordinator.stop();
  EXPECT_EQ(number_of(gated.coordinator), -511);
  EXPECT_EQ(gated.coordinator.version(), 3);
  EXPECT_EQ(gated.coordinator.pending(), 0u);
  EXPECT_THAT(numbers_of(*shared), ElementsAre(100));  // nobody changes what is shared
}

TEST(DistributedGradientsCoordinator, MergesWhatCountsDifferentlyAtTheLargerRate) {
  Gated gated({.capacity = 1, .when_full = WhenFull::merge});
  gated.coordinator.add_gradients(doubles({10}), {.weight = 2, .rate_factor = 1});     // 20
  gated.coordinator.add_gradients(doubles({100}), {.weight = 0.5, .rate_factor = 4});  // 200
  gated.coordinator.add_gradients(doubles({1000}), {.weight = 1, .rate_factor = 0});
  gated.go_on();
  gated.coordinator.stop();
  EXPECT_EQ(number_of(gated.coordinator), -221);
}

// What is finite by itself may not be as a sum: who brings it is told, and what waits stays as it was.
TEST(DistributedGradientsCoordinator, RefusesToMergeIntoWhatIsNotFinite) {
  const auto refused = [](const ParameterSet& first, const ParameterSet& second, const GradientOrigin& origin) {
    Coordinator coordinator(std::make_unique<RememberingRule>(), {.capacity = 1, .when_full = WhenFull::merge});
    coordinator.set_model_parameters(first);
    const auto shared = std::make_shared<const ParameterSet>(first);
    coordinator.add_gradients(shared);
    const std::string why = error_of([&] { coordinator.add_gradients(second, origin); });
    const bool is_refused = why != "(no error)";
    EXPECT_EQ(coordinator.pending(), is_refused ? 1u : 2u);
    EXPECT_TRUE(*shared == first);
    return is_refused;
  };
  const auto floats = [](float value) { return one_array<float>({1, value}); };
  EXPECT_TRUE(refused(floats(3e38f), floats(3e38f), {}));
  EXPECT_FALSE(refused(floats(3e38f), floats(-3e38f), {}));
  EXPECT_FALSE(refused(floats(1.5e38f), floats(1.5e38f), {}));
  EXPECT_TRUE(refused(floats(1e38f), floats(1e38f), {.weight = 10}));
  EXPECT_TRUE(refused(doubles({1e308}), doubles({1e308}), {}));
  const auto halves = [](float value) { return one_array<float16>({float16::from_float(value)}); };
  EXPECT_TRUE(refused(halves(60000), halves(60000), {}));
  EXPECT_FALSE(refused(halves(30000), halves(30000), {}));

  Gated gated({.capacity = 1, .when_full = WhenFull::merge});
  gated.coordinator.add_gradients(doubles({-1e308}));
  EXPECT_THAT(error_of([&] { gated.coordinator.add_gradients(doubles({-1e308})); }), HasSubstr("add up to more"));
  gated.coordinator.add_gradients(doubles({1e308}));
  gated.go_on();
  gated.coordinator.stop();
  EXPECT_EQ(number_of(gated.coordinator), -1);
  EXPECT_EQ(gated.coordinator.version(), 2);
}

TEST(DistributedGradientsCoordinator, EndsWhereACompensationIsNotFinite) {
  Coordinator coordinator(Sgd{.lr = 1}, {.staleness = {.delay_compensation = 1}});
  coordinator.set_model_parameters(doubles({0}));
  const ModelSnapshot before = coordinator.snapshot();
  coordinator.start();
  coordinator.add_gradients(doubles({-1}));
  coordinator.add_gradients(doubles({1e200}), {.base = before});
  EXPECT_THAT(error_of([&] { coordinator.stop(); }), HasSubstr("the delay compensation makes gradients"));
  EXPECT_EQ(number_of(coordinator), 1);
  EXPECT_EQ(coordinator.version(), 1);
}

TEST(DistributedGradientsCoordinator, CountsTheStalenessOfEachThatWasMerged) {
  Gated gated({.capacity = 1, .when_full = WhenFull::merge, .staleness = {.rate_exponent = 1}});
  ModelSnapshot at_version;
  at_version.parameters = std::make_shared<const ParameterSet>(doubles({0}));
  gated.coordinator.add_gradients(doubles({1}));
  at_version.version = 1;
  gated.coordinator.add_gradients(doubles({1}), {.base = at_version});
  at_version.version = 0;
  gated.coordinator.add_gradients(doubles({1}), {.base = at_version});
  gated.go_on();
  gated.coordinator.stop();
  EXPECT_THAT(gated.coordinator.staleness(), ElementsAre(Pair(0, 3), Pair(1, 1)));
  EXPECT_EQ(number_of(gated.coordinator), -1 - 3 * 0.5);  // all at the rate of the oldest
}

TEST(DistributedGradientsCoordinator, DropsWhatWaits) {
  Gated gated({.capacity = 2, .when_full = WhenFull::merge});
  for (int i = 0; i < 4; ++i) gated.coordinator.add_gradients(doubles({10}));
  EXPECT_EQ(gated.coordinator.pending(), 5u);
  EXPECT_EQ(gated.coordinator.clear_gradients(), 4u);
  EXPECT_EQ(gated.coordinator.pending(), 1u);  // being applied
  EXPECT_EQ(gated.coordinator.clear_gradients(), 0u);
  gated.coordinator.add_gradients(doubles({100}));
  gated.go_on();
  gated.coordinator.stop();
  EXPECT_EQ(number_of(gated.coordinator), -101);
}

TEST(DistributedGradientsCoordinator, StopsWhereWhatItWaitsForIsDropped) {
  Gated gated({});
  for (int i = 0; i < 3; ++i) gated.coordinator.add_gradients(doubles({10}));
  auto stops = std::async(std::launch::async, [&] { gated.coordinator.stop(); });
  gated.coordinator.clear_gradients();
  gated.go_on();
  stops.get();
  EXPECT_EQ(number_of(gated.coordinator), -1);
}

TEST(DistributedGradientsCoordinator, MakesRoomByAClear) {
  Coordinator coordinator(Sgd{.lr = 1}, {.capacity = 1});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.add_gradients(doubles({1}));
  auto waits = std::async(std::launch::async, [&] { coordinator.add_gradients(doubles({10})); });
  EXPECT_EQ(coordinator.clear_gradients(), 1u);
  waits.get();
  coordinator.start();
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), -10);
}

// --- the end ---

TEST(DistributedGradientsCoordinator, DropsAtItsEndWhatWaits) {
  Coordinator never_started(Sgd{});
  never_started.set_model_parameters(doubles({0}));
  never_started.add_gradients(doubles({1}));
  Coordinator running(Sgd{});
  running.set_model_parameters(doubles({0}));
  running.start();
  Coordinator failed(std::make_unique<UnluckyRule>());
  failed.set_model_parameters(doubles({0}));
  failed.start();
  failed.add_gradients(doubles({UnluckyRule::kUnlucky}));
}

TEST(DistributedGradientsCoordinator, TellsWhoWaitsForRoomThatItEnds) {
  for (int run = 0; run < 20; ++run) {
    auto coordinator = std::make_unique<Coordinator>(Sgd{}, GradientsCoordinatorOptions{.capacity = 1});
    coordinator->set_model_parameters(doubles({0}));
    coordinator->add_gradients(doubles({1}));
    std::atomic<pid_t> sender = 0;
    auto waits = std::async(std::launch::async, [&sender, its = coordinator.get()] {
      sender = ::gettid();
      return error_of([&] { its->add_gradients(doubles({1})); });
    });
    ASSERT_TRUE(eventually([&] { return sender != 0 && is_asleep(sender); }));
    coordinator = nullptr;
    EXPECT_EQ(waits.get(), "the coordinator has come to its end");
  }
}

// --- staleness ---

TEST(DistributedGradientsCoordinator, CountsHowOldGradientsAre) {
  Coordinator coordinator(Sgd{.lr = 1});
  coordinator.set_model_parameters(doubles({0}));
  const ModelSnapshot first = coordinator.snapshot();
  for (int i = 0; i < 3; ++i) coordinator.add_gradients(doubles({1}), {.base = first});
  coordinator.add_gradients(doubles({1}));
  coordinator.start();
  coordinator.stop();
  EXPECT_THAT(coordinator.staleness(), ElementsAre(Pair(0, 2), Pair(1, 1), Pair(2, 1)));
}

TEST(DistributedGradientsCoordinator, ScalesTheRateByStaleness) {
  for (const double exponent : {0.0, 0.5, 1.0, 2.0}) {
    Coordinator coordinator(Sgd{.lr = 1}, {.staleness = {.rate_exponent = exponent}});
    coordinator.set_model_parameters(doubles({0}));
    const ModelSnapshot first = coordinator.snapshot();
    double expected = 0;
    for (int staleness = 0; staleness < 4; ++staleness) {
      coordinator.add_gradients(doubles({1}), {.base = first});
      expected -= std::pow(1 + staleness, -exponent);
    }
    coordinator.start();
    coordinator.stop();
    EXPECT_DOUBLE_EQ(number_of(coordinator), expected);
  }
}

TEST(DistributedGradientsCoordinator, CompensatesADelayAsByHand) {
  Coordinator coordinator(Sgd{.lr = 0.5}, {.staleness = {.delay_compensation = 0.25}});
  coordinator.set_model_parameters(doubles({1, -1}));
  const ModelSnapshot first = coordinator.snapshot();
  coordinator.add_gradients(doubles({2, 4}), {.base = first});  // to (0, -3)
  // 2 + 0.25 * 4 * (0 - 1) = 1, and 4 + 0.25 * 16 * (-3 + 1) = -4: to (-0.5, -1)
  coordinator.add_gradients(doubles({2, 4}), {.base = first});
  coordinator.add_gradients(doubles({2, 4}));  // of nothing in particular: to (-1.5, -3)
  coordinator.start();
  coordinator.stop();
  EXPECT_THAT(numbers_of(coordinator.get_model_parameters()), ElementsAre(-1.5, -3));
}

TEST(DistributedGradientsCoordinator, CompensatesADelayOfHalvesInFloat) {
  struct Adds : UpdateRule {
    void apply(ParameterSet& parameters, const ParameterSet& gradients, const UpdateStep& step) override {
      dispatch(parameters[0].type(), [&]<typename T>(std::type_identity<T>) {
        if constexpr (requires(T its) { its.to_float(); }) {
          T& to = parameters[0].values<T>()[0];
          const float change = gradients[0].values<T>()[0].to_float() * static_cast<float>(step.gradient_scale);
          to = T::from_float(to.to_float() - change);
        }
      });
    }
  };
  const auto compensates = []<Element T>(std::type_identity<T>) {
    const auto half = [](float value) { return one_array<T>({T::from_float(value)}); };
    Coordinator coordinator(std::make_unique<Adds>(), {.staleness = {.delay_compensation = 0.25}});
    coordinator.set_model_parameters(half(1));
    const ModelSnapshot first = coordinator.snapshot();
    coordinator.add_gradients(half(1), {.base = first});  // to 0
    coordinator.add_gradients(half(2), {.base = first});  // 2 + 0.25 * 4 * (0 - 1) = 1: to -1
    coordinator.start();
    coordinator.stop();
    EXPECT_TRUE(coordinator.get_model_parameters() == half(-1));
  };
  compensates(std::type_identity<float16>{});
  compensates(std::type_identity<bfloat16>{});
}

TEST(DistributedGradientsCoordinator, HoldsNoSnapshotThatItDoesNotNeed) {
  for (const double compensation : {0.0, 1.0}) {
    Coordinator coordinator(Sgd{.lr = 1}, {.staleness = {.delay_compensation = compensation}});
    const auto given = std::make_shared<const ParameterSet>(doubles({0}));
    coordinator.set_model_parameters(given);
    const auto others = given.use_count();
    coordinator.add_gradients(doubles({1}), {.base = coordinator.snapshot()});
    EXPECT_EQ(given.use_count(), others + (compensation > 0 ? 1 : 0));
  }
}

// --- checkpoints ---

TEST(DistributedGradientsCoordinator, GoesOnFromACheckpointToTheBit) {
  for (const OptimizerRule& rule :
       std::vector<OptimizerRule>{Sgd{.lr = 0.1}, Sgd{.lr = 0.1, .momentum = 0.9}, Adam{}, Adagrad{}}) {
    RandomStream draws({6});
    Coordinator coordinator(rule);
    coordinator.set_model_parameters(doubles({1, 2}));
    const auto steps = [&](const std::vector<Coordinator*>& all) {
      for (Coordinator* its : all) its->start();
      for (int i = 0; i < 7; ++i) {
        const ParameterSet gradients = doubles({draws.normal(), draws.normal()});
        for (Coordinator* its : all) its->add_gradients(gradients);
      }
      for (Coordinator* its : all) its->stop();
    };
    steps({&coordinator});
    coordinator.set_parameters(GradientChangeMode::ascent);
    coordinator.set_rate_factor(0.125);
    ParameterSet saved;
    saved.add({.name = "somebody else's"});
    coordinator.save(saved);
    Coordinator again(rule);
    EXPECT_EQ(usage_error([&] { again.restore(saved); }), "there are no parameters yet that a checkpoint could be of");
    again.set_model_parameters(doubles({0, 0}));
    steps({&again});
    again.restore(saved);
    EXPECT_EQ(again.version(), 7);
    EXPECT_TRUE(again.get_model_parameters() == coordinator.get_model_parameters());
    steps({&coordinator, &again});
    EXPECT_TRUE(again.get_model_parameters() == coordinator.get_model_parameters()) << to_string(rule);
    ParameterSet of_first;
    ParameterSet of_second;
    coordinator.save(of_first);
    again.save(of_second);
    EXPECT_TRUE(of_first == of_second);
  }
}

TEST(DistributedGradientsCoordinator, IsNotTouchedByACheckpointOfSomethingElse) {
  Coordinator coordinator(Adam{});
  coordinator.set_model_parameters(doubles({1, 2}));
  ParameterSet before;
  coordinator.save(before);
  const auto without = [&](const std::string& name) {
    ParameterSet rest;
    for (const NamedArray& array : before) {
      if (array.name() != name) rest.add(array.layout(), array.bytes());
    }
    return rest;
  };
  for (const NamedArray& array : before) {
    EXPECT_THROW(coordinator.restore(without(array.name())), UsageError) << array.name();
    ParameterSet other = without(array.name());
    other.add({.name = array.name(), .shape = {7}, .type = array.type()});
    EXPECT_THROW(coordinator.restore(other), UsageError) << array.name();
  }
  ParameterSet with_nan = before;
  with_nan[0].values<double>()[1] = kNan;
  EXPECT_THROW(coordinator.restore(with_nan), UsageError);
  ParameterSet after;
  coordinator.save(after);
  EXPECT_TRUE(after == before);
}

}  // namespace
}  // namespace tutti
