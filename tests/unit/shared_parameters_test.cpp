#include <tutti/coordinate/shared_parameters.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>

#include "support/one_array.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using testing::doubles;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::numbers_of;
using testing::one_array;
using testing::usage_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(SharedParameters, AddsAndReadsDenseSets) {
  const SharedParameters shared(doubles({1, 2}));
  shared.add(doubles({10, 20}));
  shared.add(doubles({4, 8}), -0.5);
  EXPECT_THAT(numbers_of(shared.read()), ElementsAre(9, 18));
  ParameterSet mine = doubles({0, 0});
  const void* const place = mine[0].bytes().data();
  shared.read(mine);
  EXPECT_THAT(numbers_of(mine), ElementsAre(9, 18));
  EXPECT_EQ(mine[0].bytes().data(), place);
}

TEST(SharedParameters, HasEveryType) {
  const auto check = []<typename T>(std::type_identity<T>, auto make) {
    const SharedParameters shared(one_array<T>({make(1), make(2)}));
    shared.add(one_array<T>({make(4), make(-8)}), 0.5);
    const SharedArray<T> array = shared.array<T>("weight");
    ASSERT_EQ(array.size(), 2u);
    array.add(1, make(5));
    EXPECT_TRUE(shared.read() == one_array<T>({make(3), make(3)}));
    array.store(0, make(7));
    EXPECT_TRUE(shared.read() == one_array<T>({make(7), make(3)}));
  };
  check(std::type_identity<float>(), [](int value) { return static_cast<float>(value); });
  check(std::type_identity<double>(), [](int value) { return static_cast<double>(value); });
  check(std::type_identity<std::int32_t>(), [](int value) { return static_cast<std::int32_t>(value); });
  check(std::type_identity<std::int64_t>(), [](int value) { return static_cast<std::int64_t>(value); });
  check(std::type_identity<float16>(), [](int value) { return float16::from_float(static_cast<float>(value)); });
  check(std::type_identity<bfloat16>(), [](int value) { return bfloat16::from_float(static_cast<float>(value)); });
}

TEST(SharedParameters, AddsSingleNumbers) {
  ParameterSet set = one_array<float>({0, 0, 0}, "first");
  const std::vector<float> one = {5};
  set.add("second", {1}, one);
  const SharedParameters shared(std::move(set));
  const SharedArray<float> first = shared.array<float>("first");
  first.add(2, 1.5f);
  first.add(2, 1);
  shared.array<float>(1).add(0, 1);
  EXPECT_EQ(first.load(2), 2.5f);
  EXPECT_EQ(shared.array<float>("second").load(0), 6);
  EXPECT_THAT(shared.read()[0].values<float>(), ElementsAre(0, 0, 2.5f));
}

TEST(SharedParameters, IsNotTouchedByWhatItRefuses) {
  EXPECT_EQ(usage_error([] { SharedParameters(doubles({kNan})); }),
            "\"weight\" has numbers that are infinite or not a number");
  const SharedParameters shared(doubles({1, 2}));
  EXPECT_EQ(usage_error([&] {
              shared.add(doubles({1, kNan}));
            }),
            "\"weight\" has numbers that are infinite or not a number");
  EXPECT_EQ(usage_error([&] { shared.add(doubles({1, 1}), kNan); }), "expected a factor that is finite, found nan");
  EXPECT_THAT(usage_error([&] { shared.add(doubles({1})); }), HasSubstr("these are of another model"));
  ParameterSet other = doubles({1}, "bias");
  EXPECT_THAT(usage_error([&] { shared.read(other); }), HasSubstr("these are of another model"));
  EXPECT_EQ(usage_error([&] { (void)shared.array<double>(1); }), "there is no array 1: expected 0 to 0");
  EXPECT_EQ(usage_error([] { (void)SharedParameters(ParameterSet()).array<double>(0); }),
            "there is no array 0: the set is empty");
  EXPECT_THAT(usage_error([&] { (void)shared.array<float>(0); }), HasSubstr("float64"));
  EXPECT_THAT(usage_error([&] { (void)shared.array<double>("bias"); }), HasSubstr("bias"));
  EXPECT_THAT(numbers_of(shared.read()), ElementsAre(1, 2));
}

// What only one thread adds to is never lost, whatever others do beside it.
TEST(SharedParameters, LosesNothingOfOneThreadAlone) {
  constexpr int kThreads = 4;
  constexpr int kAdds = 5000;
  const SharedParameters shared(one_array<double>(std::vector<double>(kThreads)));
  std::vector<std::jthread> threads;
  for (std::size_t mine = 0; mine < kThreads; ++mine) {
    threads.emplace_back([&, mine] {
      const SharedArray<double> array = shared.array<double>(0);
      for (int i = 0; i < kAdds; ++i) array.add(mine, 1);
    });
  }
  threads.clear();
  EXPECT_THAT(numbers_of(shared.read()), Each(kAdds));
}

// Of what several add to one number some may be lost. What is there was added, and each number is whole.
TEST(SharedParameters, HasWholeNumbersWhereThreadsMeet) {
  constexpr int kThreads = 4;
  constexpr int kAdds = 1000;
  const SharedParameters shared(one_array<double>({0, 0, 0}));
  std::atomic<int> adding = kThreads;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      const ParameterSet deltas = doubles({1, 0x1p40, -3});
      for (int i = 0; i < kAdds; ++i) shared.add(deltas);
      --adding;
    });
  }
  threads.emplace_back([&] {
    ParameterSet mine = doubles({0, 0, 0});
    while (adding > 0) {
      shared.read(mine);
      const std::vector<double> numbers = numbers_of(mine);
      const double most = kThreads * kAdds;
      const std::vector<double> unit = {1, 0x1p40, -3};
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double times = numbers[i] / unit[i];
        ASSERT_EQ(times, static_cast<double>(static_cast<std::int64_t>(times)));
        ASSERT_TRUE(times >= 0 && times <= most) << times;
      }
    }
  });
  threads.clear();
  EXPECT_GE(numbers_of(shared.read())[0], 1);
}

TEST(SharedParameters, RefusesAFactorBeyondTheNumbersOfItsTypes) {
  const SharedParameters floats(one_array<float>({1, 0}));
  EXPECT_THAT(usage_error([&] {
                floats.add(one_array<float>({0, 0}), 1e39);
              }),
              HasSubstr("expected a factor up to 3.4e+38"));
  EXPECT_TRUE(floats.read() == one_array<float>({1, 0}));
  const SharedParameters wide(one_array<double>({1}));
  wide.add(one_array<double>({1e-300}), 1e300);
  EXPECT_DOUBLE_EQ(wide.read()[0].values<double>()[0], 2);
}

}  // namespace
}  // namespace tutti
