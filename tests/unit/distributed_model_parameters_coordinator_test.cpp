#include <tutti/coordinate/distributed_model_parameters_coordinator.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

#include "support/eventually.hpp"
#include "support/one_array.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using ::testing::DoubleEq;
using testing::doubles;
using ::testing::ElementsAre;
using testing::error_of;
using testing::eventually;
using ::testing::HasSubstr;
using testing::numbers_of;
using testing::one_array;
using testing::usage_error;
using Coordinator = DistributedModelParametersCoordinator;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double number_of(const Coordinator& coordinator) { return numbers_of(coordinator.get_model_parameters())[0]; }

struct Child {
  double value;
  ChildUpdate update = {};
};

double merged(const Merger& merger, const std::vector<Child>& children) {
  Coordinator coordinator({.merge_every = std::ssize(children), .merger = merger});
  coordinator.set_model_parameters(doubles({1000}));
  coordinator.start();
  for (const Child& child : children) coordinator.add_model_parameters(doubles({child.value}), child.update);
  coordinator.stop();
  EXPECT_EQ(coordinator.version(), 1);
  return number_of(coordinator);
}

TEST(DistributedModelParametersCoordinator, MergesByItsMerger) {
  const std::vector<Child> children = {{1, {.child = 0, .weight = 1, .score = 3}},
                                       {2, {.child = 1, .weight = 5, .score = 9}},
                                       {9, {.child = 2, .weight = 2, .score = -4}}};
  EXPECT_EQ(merged(Average{}, children), 4);
  EXPECT_DOUBLE_EQ(merged(WeightedAverage{}, children), (1 + 10 + 18) / 8.0);
  EXPECT_EQ(merged(MedianOfChildren{}, children), 2);
  EXPECT_EQ(merged(MedianOfChildren{}, {{1}, {2}, {9}, {4}}), 3);
  EXPECT_EQ(merged(BestOfChildren{}, children), 2);
  EXPECT_EQ(merged(BestOfChildren{}, {{1, {.child = 7, .score = 5}}, {2, {.child = 3, .score = 5}}}), 2);
  EXPECT_EQ(merged(BestOfChildren{}, {{1, {.score = -kInfinity}}, {2, {.score = 0}}}), 2);
}

TEST(DistributedModelParametersCoordinator, TakesTheBestToTheBit) {
  Coordinator coordinator({.merge_every = 2, .merger = BestOfChildren{}});
  const std::int64_t large = (std::int64_t{1} << 60) + 1;
  coordinator.set_model_parameters(one_array<std::int64_t>({0}));
  coordinator.add_model_parameters(one_array<std::int64_t>({large}), {.score = 1});
  coordinator.add_model_parameters(one_array<std::int64_t>({7}), {.score = 0});
  coordinator.start();
  coordinator.stop();
  EXPECT_TRUE(coordinator.get_model_parameters() == one_array<std::int64_t>({large}));
}

TEST(DistributedModelParametersCoordinator, GivesTheSameBitsWhateverTheOrderOfTheChildren) {
  for (const Merger& merger : std::vector<Merger>{Average{}, WeightedAverage{}, MedianOfChildren{}, BestOfChildren{}}) {
    std::vector<std::int64_t> order = {0, 1, 2, 3, 4, 5};
    std::vector<ParameterSet> results;
    RandomStream shuffle({1});
    for (int run = 0; run < 5; ++run) {
      Coordinator coordinator({.merge_every = 6, .merger = merger});
      coordinator.set_model_parameters(one_array<float>({0.1f, 0.2f}));
      coordinator.start();
      for (const std::int64_t child : order) {
        RandomStream draws({static_cast<std::uint64_t>(child), 77});
        coordinator.add_model_parameters(
            one_array<float>({static_cast<float>(draws.normal()), static_cast<float>(draws.normal())}),
            {.child = child, .weight = draws.uniform() + 0.1, .score = draws.normal()});
      }
      coordinator.stop();
      results.push_back(coordinator.get_model_parameters());
      EXPECT_TRUE(results.back() == results.front()) << merger.index();
      shuffle.shuffle(std::span(order));
    }
  }
}

TEST(DistributedModelParametersCoordinator, MergesEverySoMany) {
  for (const std::int64_t every : {1, 2, 3, 10}) {
    Coordinator coordinator({.merge_every = every});
    coordinator.set_model_parameters(doubles({0}));
    coordinator.start();
    double sum = 0;
    double expected = 0;
    for (std::int64_t i = 1; i <= 23; ++i) {
      coordinator.add_model_parameters(doubles({static_cast<double>(i)}), {.child = i});
      sum += static_cast<double>(i);
      if (i % every == 0) expected = std::exchange(sum, 0) / static_cast<double>(every);
      ASSERT_TRUE(eventually([&] { return coordinator.version() == i / every; }));
      ASSERT_TRUE(eventually([&] { return coordinator.pending() == static_cast<std::size_t>(i % every); }));
      EXPECT_THAT(number_of(coordinator), DoubleEq(expected));
    }
    coordinator.stop();  // with what is left over
    if (23 % every != 0) {
      expected = sum / static_cast<double>(23 % every);
    }
    EXPECT_THAT(number_of(coordinator), DoubleEq(expected));
    EXPECT_EQ(coordinator.version(), (23 + every - 1) / every);
    EXPECT_EQ(coordinator.pending(), 0u);
  }
}

TEST(DistributedModelParametersCoordinator, MergesTenUnlessItIsToldOtherwise) {
  Coordinator coordinator;
  coordinator.set_model_parameters(doubles({0}));
  coordinator.start();
  for (int i = 0; i < 10; ++i) coordinator.add_model_parameters(doubles({1}), {.child = i});
  ASSERT_TRUE(eventually([&] { return coordinator.version() == 1; }));
  coordinator.stop();
  EXPECT_EQ(coordinator.version(), 1);
}

// Each set is another power of four: times its count, a mean tells which sets it is of. Children add those of a merge
// at the same time, and all merges are looked at.
TEST(DistributedModelParametersCoordinator, LosesNoneAndRepeatsNone) {
  constexpr int kChildren = 4;
  constexpr std::int64_t kAll = 24;
  for (const std::int64_t every : {1, 2, 7, 24, 100}) {
    for (const std::size_t capacity : {1u, 3u, 64u}) {
      SCOPED_TRACE("every " + std::to_string(every) + ", capacity " + std::to_string(capacity));
      Coordinator coordinator({.merge_every = every, .capacity = capacity});
      coordinator.set_model_parameters(doubles({0}));
      coordinator.start();
      std::int64_t merges = 0;
      for (std::int64_t first = 0; first < kAll; first += every) {
        const std::int64_t end = std::min(first + every, kAll);
        std::vector<std::jthread> children;
        for (int child = 0; child < kChildren; ++child) {
          children.emplace_back([&, child] {
            for (std::int64_t set = first + child; set < end; set += kChildren)
              coordinator.add_model_parameters(doubles({std::ldexp(1.0, static_cast<int>(2 * set))}), {.child = child});
          });
        }
        children.clear();
        if (end - first < every) coordinator.stop();  // merges what is left over
        ++merges;
        ASSERT_TRUE(eventually([&] { return coordinator.version() == merges; }));
        double expected = 0;
        for (std::int64_t set = first; set < end; ++set) expected += std::ldexp(1.0, static_cast<int>(2 * set));
        EXPECT_EQ(std::llround(number_of(coordinator) * static_cast<double>(end - first)), std::llround(expected));
      }
      coordinator.stop();
      EXPECT_EQ(coordinator.version(), merges);
      EXPECT_EQ(coordinator.pending(), 0u);
    }
  }
}

TEST(DistributedModelParametersCoordinator, DropsWhatIsNotMerged) {
  Coordinator coordinator({.merge_every = 3});
  coordinator.set_model_parameters(doubles({0}));
  for (int i = 0; i < 2; ++i) coordinator.add_model_parameters(doubles({5}));
  EXPECT_EQ(coordinator.clear(), 2u);
  coordinator.start();
  for (int i = 0; i < 2; ++i) coordinator.add_model_parameters(doubles({5}));
  EXPECT_EQ(coordinator.pending(), 2u);
  EXPECT_EQ(coordinator.clear(), 2u);
  EXPECT_EQ(coordinator.pending(), 0u);
  coordinator.add_model_parameters(doubles({9}));
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), 9);
  EXPECT_EQ(coordinator.version(), 1);
}

TEST(DistributedModelParametersCoordinator, GoesOnAfterAStop) {
  Coordinator coordinator({.merge_every = 2});
  coordinator.set_model_parameters(doubles({0}));
  for (int run = 1; run <= 20; ++run) {
    const CoordinatorRun handle = coordinator.start();
    for (int i = 0; i < 3; ++i) coordinator.add_model_parameters(doubles({1.0 * run}));
    coordinator.stop();
    handle.wait(0s);
    EXPECT_EQ(number_of(coordinator), run);
    EXPECT_EQ(coordinator.version(), 2 * run);
  }
}

TEST(DistributedModelParametersCoordinator, HasChildrenWaitForRoom) {
  Coordinator coordinator({.merge_every = 1, .capacity = 1, .deadline = 5ms});
  coordinator.set_model_parameters(doubles({0}));
  coordinator.add_model_parameters(doubles({1}));
  EXPECT_EQ(error_of([&] { coordinator.add_model_parameters(doubles({2})); }),
            "1 sets wait already, and there was no room for 5 ms");
  EXPECT_EQ(coordinator.pending(), 1u);
}

TEST(DistributedModelParametersCoordinator, RefusesWhatCannotBe) {
  EXPECT_EQ(usage_error([] { Coordinator({.merge_every = 0}); }), "merge_every: expected at least 1, found 0");
  EXPECT_EQ(usage_error([] { Coordinator({.capacity = 0}); }), "capacity: expected room for at least one set, found 0");
  Coordinator coordinator({.merge_every = 2});
  EXPECT_EQ(usage_error([&] { coordinator.start(); }),
            "there are no parameters: expected set_model_parameters() first");
  EXPECT_EQ(usage_error([&] { coordinator.add_model_parameters(doubles({1})); }),
            "there are no parameters yet to merge into");
  EXPECT_EQ(usage_error([&] { coordinator.set_model_parameters(ParameterSet()); }),
            "expected parameters, found a set without arrays");
  EXPECT_EQ(usage_error([&] { coordinator.set_model_parameters(doubles({kNan})); }),
            "\"weight\" has numbers that are infinite or not a number");
  coordinator.set_model_parameters(doubles({0}));
  coordinator.start();
  EXPECT_EQ(usage_error([&] { coordinator.start(); }), "it was started already");
  const auto refused = [&](ParameterSet set, const ChildUpdate& update = {}) {
    return usage_error([&] { coordinator.add_model_parameters(std::move(set), update); });
  };
  EXPECT_EQ(refused(doubles({kInfinity})), "\"weight\" has numbers that are infinite or not a number");
  EXPECT_THAT(refused(doubles({1, 2})), HasSubstr("these parameters are of another model"));
  EXPECT_THAT(refused(doubles({1}, "bias")), HasSubstr("these parameters are of another model"));
  EXPECT_THAT(refused(one_array<float>({1})), HasSubstr("these parameters are of another model"));
  for (const double weight : {0.0, -1.0, kNan, kInfinity})
    EXPECT_THAT(refused(doubles({1}), {.child = 3, .weight = weight}), HasSubstr("child 3: expected a weight above 0"));
  EXPECT_EQ(refused(doubles({1}), {.child = 3, .score = kNan}), "child 3: expected a score, found nan");
  EXPECT_EQ(coordinator.pending(), 0u);
  coordinator.add_model_parameters(doubles({4}));
  coordinator.stop();
  EXPECT_EQ(number_of(coordinator), 4);
}

// What has a mean is merged, however far it is from the model and however large it is.
TEST(DistributedModelParametersCoordinator, MergesTheChildrenWhateverTheModelWas) {
  for (const double before : {-1.5e308, -5.0, 0.0, 1e17, 1.5e308}) {
    for (const Merger& merger : std::vector<Merger>{Average{}, WeightedAverage{}, MedianOfChildren{}}) {
      for (const double value : {1.5e308, -1.5e308, 1.0, 0.1, 5e-324}) {
        Coordinator coordinator({.merge_every = 4, .merger = merger});
        coordinator.set_model_parameters(doubles({before}));
        coordinator.start();
        for (int i = 0; i < 4; ++i) coordinator.add_model_parameters(doubles({value}), {.child = i, .weight = 0.1 + i});
        coordinator.stop();
        EXPECT_EQ(number_of(coordinator), value) << before;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
