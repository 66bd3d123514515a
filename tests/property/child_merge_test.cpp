// Merges of what children have learnt, of numbers of any size: against plain means in long double, and whatever the
// order of the children.
#include "coordinate/child_merge.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/one_array.hpp"

namespace tutti::detail {
namespace {

using testing::one_array;

constexpr std::size_t kLength = 40;
constexpr double kLargestOfAll = std::numeric_limits<double>::max();
constexpr std::size_t kMostChildren = 9;

const std::vector<Merger> kMergers = {Average{}, WeightedAverage{}, MedianOfChildren{}, BestOfChildren{}};

template <Element T>
long double exactly(T value) {
  if constexpr (requires { value.to_float(); })
    return static_cast<long double>(value.to_float());
  else
    return static_cast<long double>(value);
}

// Large and small ones, of either sign, and some that are the limits of their type.
template <Element T>
T draw(RandomStream& draws) {
  if constexpr (std::integral<T>) {
    switch (draws.below(4)) {
      case 0: return std::numeric_limits<T>::max() - static_cast<T>(draws.below(3));
      case 1: return std::numeric_limits<T>::min() + static_cast<T>(draws.below(3));
      default: return static_cast<T>(draws.below(100)) - 50;
    }
  } else if constexpr (std::same_as<T, double>) {
    switch (draws.below(6)) {
      case 0: return (draws.below(2) == 0 ? 1 : -1) * kLargestOfAll * draws.uniform();
      case 1: return draws.normal() * 1e-310;
      case 2: return 0 * draws.normal();
      default: return draws.normal() * std::pow(10, static_cast<double>(draws.below(30)) - 15);
    }
  } else {
    const auto value = static_cast<float>(draws.normal() * std::pow(10, static_cast<double>(draws.below(7)) - 4));
    if constexpr (std::same_as<T, float>)
      return value;
    else
      return T::from_float(value);
  }
}

template <Element T>
ChildParameters child_of(const std::vector<T>& values, const ChildUpdate& update) {
  return {std::make_shared<const ParameterSet>(one_array(values)), update};
}

template <Element T>
std::vector<ChildParameters> draw_children(RandomStream& draws) {
  std::vector<ChildParameters> children;
  const std::size_t count = 1 + draws.below(kMostChildren);
  const bool has_numbers = draws.below(2) == 0;
  for (std::size_t child = 0; child < count; ++child) {
    std::vector<T> values;
    for (std::size_t i = 0; i < kLength; ++i) values.push_back(draw<T>(draws));
    const bool weighs_much = draws.below(5) == 0;
    children.push_back(child_of(values, {.child = has_numbers ? static_cast<std::int64_t>(child) : 0,
                                         .weight = (0.1 + draws.uniform()) * (weighs_much ? 1e199 : 1),
                                         .score = static_cast<double>(draws.below(3))}));
  }
  return children;
}

template <Element T>
ParameterSet merge(const Merger& merger, const std::vector<ChildParameters>& children) {
  ParameterSet merged = one_array(std::vector<T>(kLength));
  merge_children(merger, children, merged);
  return merged;
}

// Each type with its own children, `runs` times.
template <typename Check>
void for_each_type(int runs, const Check& check) {
  for (const DataType type : {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16,
                              DataType::int32, DataType::int64}) {
    for (int run = 0; run < runs; ++run) {
      SCOPED_TRACE(std::string(to_string(type)) + ", run " + std::to_string(run));
      RandomStream draws({static_cast<std::uint64_t>(type), static_cast<std::uint64_t>(run)});
      dispatch(type, [&]<typename T>(std::type_identity<T>) { check(draws, std::type_identity<T>{}); });
    }
  }
}

TEST(ChildMerge, GivesChildrenThatAreAlikeThemselves) {
  for_each_type(60, []<Element T>(RandomStream& draws, std::type_identity<T>) {
    std::vector<ChildParameters> children = draw_children<T>(draws);
    for (ChildParameters& its : children) its.values = children[0].values;
    for (const Merger& merger : kMergers) EXPECT_TRUE(merge<T>(merger, children) == *children[0].values);
  });
}

TEST(ChildMerge, GivesTheSameBitsInAnyOrder) {
  for_each_type(60, []<Element T>(RandomStream& draws, std::type_identity<T>) {
    std::vector<ChildParameters> children = draw_children<T>(draws);
    for (const Merger& merger : kMergers) {
      const ParameterSet expected = merge<T>(merger, children);
      for (int shuffle = 0; shuffle < 5; ++shuffle) {
        draws.shuffle(std::span(children));
        EXPECT_TRUE(merge<T>(merger, children) == expected) << merger.index();
      }
    }
  });
}

// How far apart a number of the type is from the next one, beyond a number of this size.
template <Element T>
long double step_at(long double size) {
  const auto precision = [] {
    if constexpr (std::same_as<T, double>) return 52;
    if constexpr (std::same_as<T, float>) return 23;
    if constexpr (std::same_as<T, float16>) return 10;
    return 7;
  }();
  const auto smallest = [] {
    if constexpr (std::same_as<T, double>) return -1074;
    if constexpr (std::same_as<T, float16>) return -24;
    return std::same_as<T, float> ? -149 : -133;
  }();
  int exponent = 0;
  (void)std::frexp(size, &exponent);
  return std::ldexp(1.0L, std::max(exponent - 1 - precision, smallest));
}

TEST(ChildMerge, IsAMeanInLongDoubleRoundedOnce) {
  for_each_type(60, []<Element T>(RandomStream& draws, std::type_identity<T>) {
    const std::vector<ChildParameters> children = draw_children<T>(draws);
    for (const bool is_weighted : {false, true}) {
      const ParameterSet merged = merge<T>(is_weighted ? Merger(WeightedAverage{}) : Merger(Average{}), children);
      for (std::size_t i = 0; i < kLength; ++i) {
        long double sum = 0;
        long double total = 0;
        long double largest = 0;
        for (const ChildParameters& its : children) {
          const long double weight = is_weighted ? its.update.weight : 1;
          const long double value = exactly((*its.values)[0].template values<T>()[i]);
          sum += weight * value;
          total += weight;
          largest = std::max(largest, std::abs(value));
        }
        const long double expected = sum / total;
        const long double found = exactly(merged[0].template values<T>()[i]);
        // Where large ones cancel each other, what was rounded is as much as beside the largest.
        if constexpr (std::integral<T>)
          EXPECT_LE(std::abs(found - expected), 0.5L + (largest > 0x1p40L ? largest * 0x1p-50L : 0)) << i;
        else
          EXPECT_LE(std::abs(found - expected), step_at<T>(expected) + largest * (is_weighted ? 0x1p-52L : 0x1p-60L))
              << i;
      }
    }
  });
}

TEST(ChildMerge, HasAMedianOfTheMiddleOnes) {
  for_each_type(60, []<Element T>(RandomStream& draws, std::type_identity<T>) {
    const std::vector<ChildParameters> children = draw_children<T>(draws);
    const ParameterSet merged = merge<T>(MedianOfChildren{}, children);
    for (std::size_t i = 0; i < kLength; ++i) {
      std::vector<long double> column;
      for (const ChildParameters& its : children) column.push_back(exactly((*its.values)[0].template values<T>()[i]));
      std::ranges::sort(column);
      const long double below = column[(column.size() - 1) / 2];
      const long double above = column[column.size() / 2];
      const long double found = exactly(merged[0].template values<T>()[i]);
      EXPECT_GE(found, below);
      EXPECT_LE(found, above);
      if constexpr (std::integral<T>)
        EXPECT_LE(std::abs(found - (below + above) / 2), 0.5L);
      else
        EXPECT_LE(std::abs(found - (below + above) / 2), step_at<T>((below + above) / 2));
    }
  });
}

TEST(ChildMerge, TakesTheBestAsItIs) {
  for_each_type(60, []<Element T>(RandomStream& draws, std::type_identity<T>) {
    const std::vector<ChildParameters> children = draw_children<T>(draws);
    const ParameterSet merged = merge<T>(BestOfChildren{}, children);
    double best = 0;
    for (const ChildParameters& its : children) best = std::max(best, its.update.score);
    EXPECT_TRUE(std::ranges::any_of(
        children, [&](const ChildParameters& its) { return its.update.score == best && *its.values == merged; }));
  });
}

TEST(ChildMerge, IsWhatOneExpects) {
  const auto merged = []<Element T>(const Merger& merger, const std::vector<T>& values) {
    std::vector<ChildParameters> children;
    for (const T value : values) children.push_back(child_of<T>({value}, {}));
    ParameterSet result = one_array<T>({0});
    merge_children(merger, children, result);
    return result[0].template values<T>()[0];
  };
  using Doubles = std::vector<double>;
  using Integers = std::vector<std::int64_t>;
  EXPECT_EQ(merged(MedianOfChildren{}, Doubles{0.1, 0.2, 0.3}), 0.2);
  EXPECT_EQ(merged(Average{}, Doubles{0.1, 0.1, 0.1}), 0.1);
  EXPECT_EQ(merged(Average{}, Doubles{1e17, 1, -1e17}), 1 / 3.0);
  EXPECT_EQ(merged(Average{}, Doubles{1.5e308, 1.5e308}), 1.5e308);
  EXPECT_EQ(merged(MedianOfChildren{}, Doubles{1.5e308, 1.7e308}), 1.6e308);
  EXPECT_TRUE(std::signbit(merged(Average{}, Doubles{-0.0, -0.0})));
  EXPECT_EQ(merged(Average{}, Integers{1, 2}), 2);
  EXPECT_EQ(merged(Average{}, Integers{-1, -2}), -2);
  EXPECT_EQ(merged(Average{}, Integers{-1, 0}), -1);
  EXPECT_EQ(merged(Average{}, Integers{0, 1, 0}), 0);
  EXPECT_EQ(merged(MedianOfChildren{}, Integers{(1LL << 60) + 1, (1LL << 60) + 3, 0, 1LL << 61}), (1LL << 60) + 2);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(merged(Average{}, Integers{kMost, kMost - 2}), kMost - 1);
}

}  // namespace
}  // namespace tutti::detail
