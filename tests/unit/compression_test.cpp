#include <tutti/kernels/compression.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::usage_error;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
std::vector<T> normal_values(std::size_t length, std::uint64_t seed) {
  RandomStream draws({seed});
  std::vector<T> values(length);
  for (T& value : values) value = static_cast<T>(draws.normal());
  return values;
}

// --- the largest values ---

// By sorting.
template <typename T>
std::vector<std::uint32_t> largest_by_sorting(const std::vector<T>& values, std::size_t k) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto weight = [&](std::uint32_t i) {
    return std::isnan(values[i]) ? std::pair(1, T{0}) : std::pair(0, std::abs(values[i]));
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return weight(a) > weight(b); });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

template <typename T>
void expect_the_largest(const std::vector<T>& values, const std::string& what) {
  const std::size_t n = values.size();
  for (const std::size_t k :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, n / 100, n / 10, n / 2, n - 1, n, n + 1}) {
    const auto found = top_k(std::span<const T>(values), k);
    ASSERT_EQ(found.indices, largest_by_sorting(values, k)) << what << ", " << k << " of " << n;
    ASSERT_EQ(found.original_len, n);
    ASSERT_EQ(found.values.size(), found.indices.size());
    for (std::size_t i = 0; i < found.indices.size(); ++i) {
      const T value = values[found.indices[i]];
      ASSERT_TRUE(found.values[i] == value || (std::isnan(value) && std::isnan(found.values[i])));
    }
  }
}

template <typename T>
class TopKOf : public ::testing::Test {};
using Wide = ::testing::Types<float, double>;
TYPED_TEST_SUITE(TopKOf, Wide);

TYPED_TEST(TopKOf, TakesTheLargestMagnitudes) {
  RandomStream draws({11});
  for (const std::size_t length : {1, 2, 7, 100, 5000}) {
    std::vector<TypeParam> values = normal_values<TypeParam>(length, length);
    expect_the_largest(values, "normal");
    for (TypeParam& value : values) value *= static_cast<TypeParam>(std::pow(10.0, 60 * draws.uniform() - 30));
    expect_the_largest(values, "of every size");
    for (TypeParam& value : values) value = static_cast<TypeParam>(static_cast<int>(draws.below(5)) - 2);
    expect_the_largest(values, "with many equal");
    std::ranges::fill(values, TypeParam{-1});
    expect_the_largest(values, "all equal");
    std::ranges::fill(values, TypeParam{0});
    expect_the_largest(values, "zeros");
  }
}

TYPED_TEST(TopKOf, CountsANanAsTheLargestAndInfinityAsTheNext) {
  std::vector<TypeParam> values = normal_values<TypeParam>(1000, 3);
  values[500] = -std::numeric_limits<TypeParam>::quiet_NaN();
  values[900] = std::numeric_limits<TypeParam>::signaling_NaN();
  values[100] = -std::numeric_limits<TypeParam>::infinity();
  values[200] = std::numeric_limits<TypeParam>::max();
  expect_the_largest(values, "with NaNs");
  EXPECT_THAT(top_k(std::span<const TypeParam>(values), 1).indices, ElementsAre(500));
  EXPECT_THAT(top_k(std::span<const TypeParam>(values), 4).indices, ElementsAre(100, 200, 500, 900));
}

TEST(TopKValues, TakesTheFirstOfEqualOnes) {
  EXPECT_EQ(top_k(std::vector<float>{1, -2, 2, 0, -2}, 2), (SparseGradient{{1, 2}, {-2, 2}, 5}));
}

TEST(TopKValues, OfNothingIsNothing) { EXPECT_EQ(top_k(std::vector<float>{}, 3), SparseGradient{}); }

TEST(SparseGradients, AreAddedWhereTheyStood) {
  std::vector<float> sum = {1, 2, 3};
  add_to(sum, SparseGradient{{0, 2}, {10, 20}, 3});
  EXPECT_THAT(sum, ElementsAre(11, 2, 23));
}

TEST(SparseGradients, AreRefusedWhereTheyDoNotFitAndNothingIsAdded) {
  std::vector<double> sum = {1, 2, 3};
  EXPECT_EQ(usage_error([&] {
              add_to(sum, SparseGradient64{{0}, {10}, 4});
            }),
            "a sparse gradient of 4 elements cannot be added to 3 elements");
  EXPECT_EQ(usage_error([&] {
              add_to(sum, SparseGradient64{{0, 3}, {10, 20}, 3});
            }),
            "a sparse gradient of 3 elements has none of the index 3");
  EXPECT_EQ(usage_error([&] {
              add_to(sum, SparseGradient64{{0, 1}, {10}, 3});
            }),
            "a sparse gradient has as many indices as values, found 2 and 1");
  EXPECT_THAT(sum, ElementsAre(1, 2, 3));
}

// --- 16 bits ---

// Numbers of every exponent, around every place where rounding turns.
std::vector<float> telling_floats() {
  std::vector<float> values = {0.0f,  -0.0f,      kInfinity, -kInfinity, kNan, -kNan,
                               65504, 65519.996f, 65520,     -65520,     1e38f};
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 7) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  return values;
}

template <typename Half>
void expect_conversion_as_base_does() {
  const std::vector<float> values = telling_floats();
  std::vector<Half> halves(values.size());
  convert(values, halves);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(halves[i].bits, Half::from_float(values[i]).bits) << std::bit_cast<std::uint32_t>(values[i]);
  }
  const std::vector<double> doubles(values.begin(), values.end());
  std::vector<Half> from_doubles(values.size());
  convert(doubles, from_doubles);
  EXPECT_EQ(from_doubles, halves);

  std::vector<Half> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> floats(all.size());
  std::vector<double> wider(all.size());
  convert(all, floats);
  convert(all, wider);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), std::bit_cast<std::uint32_t>(all[i].to_float())) << i;
    ASSERT_TRUE(wider[i] == floats[i] || (std::isnan(wider[i]) && std::isnan(floats[i]))) << i;
  }
}

TEST(Conversion, RoundsAsTheElementTypesDo) {
  expect_conversion_as_base_does<float16>();
  expect_conversion_as_base_does<bfloat16>();
}

TEST(Conversion, RefusesOtherTypesAndLengths) {
  std::vector<float> wide(3);
  std::vector<float16> half(2);
  std::vector<std::int32_t> whole(3);
  EXPECT_EQ(usage_error([&] { convert(wide, half); }), "converting 3 elements: expected room for as many, found 2");
  EXPECT_EQ(usage_error([&] { convert(wide, whole); }),
            "float32 and float64 are converted to float16 and bfloat16 and back, not float32 to int32");
}

template <typename T>
class NarrowOf : public ::testing::Test {};
TYPED_TEST_SUITE(NarrowOf, Wide);

TYPED_TEST(NarrowOf, LosesNothing) {
  const std::vector<TypeParam> gradients = normal_values<TypeParam>(1000, 1);
  std::vector<TypeParam> remains = normal_values<TypeParam>(1000, 2);
  for (TypeParam& value : remains) value /= 1000;
  std::vector<TypeParam> left(1000);
  std::vector<bfloat16> sent(1000);
  narrow({gradients, remains, sent, left}, 1e38);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_EQ(static_cast<TypeParam>(sent[i].to_float()) + left[i], gradients[i] + remains[i]);
    EXPECT_LE(std::abs(left[i]), std::abs(gradients[i] + remains[i]) / 256);
  }
}

TYPED_TEST(NarrowOf, KeepsWhatIsBeyondTheMostAndLetsThroughWhatIsNoNumber) {
  constexpr auto kMost = std::numeric_limits<TypeParam>::max();
  const auto infinity = static_cast<TypeParam>(kInfinity);
  const std::vector<TypeParam> gradients = {70000, -200000, infinity, -infinity, static_cast<TypeParam>(kNan), kMost};
  const std::vector<TypeParam> remains = {1000, 0, 3, 4, 5, kMost};
  std::vector<TypeParam> left(6);
  std::vector<float16> sent(6);
  narrow({gradients, remains, sent, left}, 65504);
  EXPECT_EQ(sent[0].to_float(), 65504);
  EXPECT_EQ(sent[1].to_float(), -65504);
  EXPECT_EQ(sent[2].to_float(), kInfinity);
  EXPECT_EQ(sent[3].to_float(), -kInfinity);
  EXPECT_TRUE(std::isnan(sent[4].to_float()));
  EXPECT_EQ(sent[5].to_float(), 65504);
  left[5] = left[5] == kMost - 65504 ? TypeParam{6} : TypeParam{0};
  EXPECT_THAT(left, ElementsAre(5496, -134496, 3, 4, 5, 6));
}

// --- matrices ---

template <typename T>
class LowRankOf : public ::testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 1e-4 : 1e-12;
};
TYPED_TEST_SUITE(LowRankOf, Wide);

TYPED_TEST(LowRankOf, ProductsAreThoseOfTheBook) {
  using T = TypeParam;
  for (const LowRankShape shape : {LowRankShape{1, 1, 1}, LowRankShape{3, 5, 2}, LowRankShape{40, 17, 3},
                                   LowRankShape{16, 100, 4}, LowRankShape{0, 4, 2}}) {
    const auto [rows, columns, rank] = shape;
    const std::vector<T> m = normal_values<T>(rows * columns, 1);
    const std::vector<T> q = normal_values<T>(columns * rank, 2);
    std::vector<T> p(rows * rank);
    matrix_times<T>(m, shape, q, p);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < rank; ++k) {
        double sum = 0;
        for (std::size_t j = 0; j < columns; ++j) sum += double{m[i * columns + j]} * double{q[k * columns + j]};
        EXPECT_NEAR(p[k * rows + i], sum, this->kTolerance);
      }
    std::vector<T> back(columns * rank, T{7});
    transposed_times<T>(m, shape, p, back);
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < rank; ++k) {
        double sum = 0;
        for (std::size_t i = 0; i < rows; ++i) sum += double{m[i * columns + j]} * double{p[k * rows + i]};
        EXPECT_NEAR(back[k * columns + j], sum, 100 * this->kTolerance);
      }
    std::vector<T> product(rows * columns, T{7});
    outer_product<T>(p, shape, q, product);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < rank; ++k) sum += double{p[k * rows + i]} * double{q[k * columns + j]};
        EXPECT_NEAR(product[i * columns + j], sum, this->kTolerance);
      }
    subtract_outer_product<T>(p, shape, q, product);
    for (const T value : product) EXPECT_NEAR(value, 0, this->kTolerance);
  }
}

TYPED_TEST(LowRankOf, ColumnsBecomeOrthonormal) {
  using T = TypeParam;
  constexpr std::size_t kRows = 50;
  constexpr std::size_t kRank = 4;
  // Of any size: squares of these would overflow, or vanish.
  for (const double scale : {1.0, sizeof(T) == 4 ? 1e-30 : 1e-200, sizeof(T) == 4 ? 1e30 : 1e200}) {
    std::vector<T> columns = normal_values<T>(kRows * kRank, 5);
    for (T& value : columns) value *= static_cast<T>(scale);
    // The second is nearly the first.
    for (std::size_t i = 0; i < kRows; ++i) columns[kRows + i] = columns[i] + columns[kRows + i] / 100;
    orthonormalise(std::span(columns), kRows);
    for (std::size_t a = 0; a < kRank; ++a)
      for (std::size_t b = 0; b < kRank; ++b) {
        double dot = 0;
        for (std::size_t i = 0; i < kRows; ++i) dot += double{columns[a * kRows + i]} * double{columns[b * kRows + i]};
        EXPECT_NEAR(dot, a == b ? 1 : 0, sizeof(T) == 4 ? 1e-6 : 1e-14) << a << " and " << b << " at " << scale;
      }
  }
}

TYPED_TEST(LowRankOf, ZerosStayZerosAndWhatDependsOnOthersBecomesZero) {
  using T = TypeParam;
  std::vector<T> zeros(12);
  orthonormalise(std::span(zeros), 4);
  EXPECT_THAT(zeros, Each(T{0}));
  std::vector<T> columns = {3, 4, 0, 6, 8, 0, 0, 0, 5};
  orthonormalise(std::span(columns), 3);
  EXPECT_THAT(columns, ElementsAre(static_cast<T>(0.6), static_cast<T>(0.8), 0, 0, 0, 0, 0, 0, 1));
}

TYPED_TEST(LowRankOf, ANanIsNotHidden) {
  using T = TypeParam;
  for (const T wrong : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
    std::vector<T> columns = {1, 2, 3, wrong, 4, 5};
    orthonormalise(std::span(columns), 2);
    EXPECT_FALSE(std::isnan(columns[0]) || std::isnan(columns[1]));
    for (std::size_t i = 2; i < columns.size(); ++i) EXPECT_TRUE(std::isnan(columns[i])) << i;
  }
}

TEST(LowRank, RefusesArraysOfOtherLengths) {
  std::vector<float> m(6);
  std::vector<float> p(2);
  std::vector<float> q(4);
  EXPECT_EQ(usage_error([&] {
              matrix_times<float>(m, {2, 3, 1}, q, p);
            }),
            "a matrix of 2 x 3 and its factors of rank 1 were given 6, 2 and 4 elements");
  EXPECT_EQ(usage_error([&] { orthonormalise(std::span(q), 3); }), "4 elements are no columns of 3");
}

}  // namespace
}  // namespace tutti
