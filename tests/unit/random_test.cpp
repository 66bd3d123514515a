#include <tutti/base/random.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using ::testing::ElementsAre;

static_assert(std::uniform_random_bit_generator<RandomStream>);

// The answers that come with Random123, where Philox comes from.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(detail::philox({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(detail::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(detail::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

// Frozen: a change here changes every seeded run there is. The values were computed apart, in another language.
TEST(RandomStream, DrawsTheSameNumbersForEver) {
  RandomStream draws({7, 100, 3, 2});
  EXPECT_EQ(draws(), 0xb4ee655a78c71519u);
  EXPECT_EQ(draws(), 0x657d8f8a0013c62fu);
  EXPECT_EQ(draws(), 0x8cf0ab3b3230d71cu);
  EXPECT_EQ(draws(), 0xe97c29ff8f06774bu);
  EXPECT_EQ(draws(), 0x63d63b62b29a9f2au);
  EXPECT_EQ(RandomStream(std::initializer_list<std::uint64_t>{})(), 0x080913130056269fu);
  EXPECT_EQ(RandomStream({0})(), 0xcbc8d0a690aa0e37u);
  EXPECT_EQ(RandomStream({1})(), 0x881c19bd4c3d6f1eu);
  EXPECT_EQ(RandomStream({1, 0})(), 0x46ef3c15c73dd7cbu);
  EXPECT_EQ(RandomStream({1, 2})(), 0x3a06241a4cea5634u);
  EXPECT_EQ(RandomStream({2, 1})(), 0xa47bc750e1d74a22u);
}

TEST(RandomStream, MakesTheSameValuesForEver) {
  RandomStream uniform({1});
  EXPECT_EQ(uniform.uniform(), 0x1.1038337a987adp-1);
  EXPECT_EQ(uniform.uniform(), 0x1.500fe79a5a1dfp-1);
  RandomStream uniform_float({1});
  EXPECT_EQ(uniform_float.uniform_float(), 0x1.103832p-1f);
  EXPECT_EQ(uniform_float.uniform_float(), 0x1.500fe6p-1f);
  RandomStream below({2});
  std::vector<std::uint64_t> digits(12);
  for (auto& digit : digits) digit = below.below(10);
  EXPECT_THAT(digits, ElementsAre(1, 5, 8, 1, 4, 0, 8, 7, 5, 1, 5, 2));
  RandomStream order({4});
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  order.shuffle(std::span(values));
  EXPECT_THAT(values, ElementsAre(8, 4, 9, 5, 3, 2, 7, 6, 0, 1));
}

// To the last bit: no library function and no fused operation has a part in it.
TEST(RandomStream, MakesTheSameNormalValuesForEver) {
  RandomStream normal({3});
  EXPECT_EQ(normal.normal(), 0x1.c66b0d77576f9p-1);
  EXPECT_EQ(normal.normal(), 0x1.b67235ace7857p-2);
  EXPECT_EQ(normal.normal(), -0x1.18195596ebb26p-1);
  EXPECT_EQ(normal.normal(), -0x1.a747b1dffe053p-2);
  EXPECT_EQ(normal.position(), 14u);
}

TEST(RandomStream, TakesItsListFromASpan) {
  const std::vector<std::uint64_t> list = {7, 100, 3, 2};
  RandomStream a{std::span<const std::uint64_t>(list)};
  RandomStream b({7, 100, 3, 2});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a(), b());
}

TEST(RandomStream, OfAnotherListSharesNoDraws) {
  std::set<std::uint64_t> seen;
  std::size_t draws = 0;
  const auto draw_from = [&](std::vector<std::uint64_t> list) {
    RandomStream stream{std::span<const std::uint64_t>(list)};
    for (int i = 0; i < 8; ++i, ++draws) seen.insert(stream());
  };
  const std::vector<std::uint64_t> numbers = {0, 1, 2, 3, 1ull << 32, 1ull << 63, ~0ull};
  draw_from({});
  for (const auto a : numbers) {
    draw_from({a});
    for (const auto b : numbers) {
      draw_from({a, b});
      for (const auto c : numbers) draw_from({a, b, c});
    }
  }
  EXPECT_EQ(seen.size(), draws);  // of 3200 draws of 64 bits no two are equal, but with a chance of 3 in 10^13
}

// Streams with neighbouring numbers in their lists differ in about half of their bits, wherever the neighbour is.
TEST(RandomStream, ChangesHalfOfItsBitsWithEachBitOfItsList) {
  for (std::size_t place = 0; place < 3; ++place) {
    for (int bit = 0; bit < 64; ++bit) {
      int changed = 0;
      for (std::uint64_t seed = 0; seed < 16; ++seed) {
        std::vector<std::uint64_t> list = {seed, 5, 6};
        RandomStream before{std::span<const std::uint64_t>(list)};
        list[place] ^= std::uint64_t{1} << bit;
        RandomStream after{std::span<const std::uint64_t>(list)};
        for (int i = 0; i < 4; ++i) changed += std::popcount(before() ^ after());
      }
      // 4096 fair coins: 2048, give or take 32; six times that is allowed.
      EXPECT_NEAR(changed, 2048, 192) << "bit " << bit << " of number " << place;
    }
  }
}

TEST(RandomStream, GoesOnFromASavedPosition) {
  for (const int before : {0, 1, 2, 3, 10}) {
    RandomStream stream({11});
    for (int i = 0; i < before; ++i) stream.normal();
    RandomStream again({11});
    again.seek(stream.position());
    EXPECT_EQ(again.position(), stream.position());
    for (int i = 0; i < 20; ++i) EXPECT_EQ(again.normal(), stream.normal());
    EXPECT_EQ(again.below(10), stream.below(10));
  }
}

TEST(RandomStream, SkipsAsIfItHadDrawn) {
  for (const std::uint64_t start : {0, 1, 2, 5}) {
    for (const std::uint64_t skipped : {0, 1, 2, 3, 4, 7, 1000}) {
      RandomStream drawn({12});
      RandomStream jumped({12});
      for (std::uint64_t i = 0; i < start; ++i) EXPECT_EQ(drawn(), jumped());
      for (std::uint64_t i = 0; i < skipped; ++i) drawn();
      jumped.skip(skipped);
      EXPECT_EQ(jumped.position(), start + skipped);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(drawn(), jumped()) << start << " " << skipped;
    }
  }
}

TEST(RandomStream, SeeksBackAndFarAhead) {
  RandomStream stream({13});
  const std::uint64_t first = stream();
  const std::uint64_t second = stream();
  stream.seek(~0ull);
  const std::uint64_t last = stream();
  EXPECT_EQ(stream.position(), 0u);
  EXPECT_EQ(stream(), first);
  stream.seek(1);
  EXPECT_EQ(stream(), second);
  stream.seek(~0ull);
  EXPECT_EQ(stream(), last);
}

TEST(RandomStream, StaysBelow) {
  RandomStream stream({14});
  for (const std::uint64_t n : {1ull, 2ull, 3ull, 10ull, 1ull << 32, (1ull << 63) + 1, ~0ull}) {
    for (int i = 0; i < 1000; ++i) ASSERT_LT(stream.below(n), n);
  }
  EXPECT_EQ(testing::usage_error([&] { stream.below(0); }), "expected a number of choices of at least 1, found 0");
}

// The chi-square statistic of `counts` against equal chances.
double chi_square(const std::vector<int>& counts) {
  const double expected =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), 0)) / static_cast<double>(counts.size());
  double sum = 0;
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

// With d degrees of freedom the statistic has mean d and variance 2d; six deviations are allowed, and none too few.
void expect_even(const std::vector<int>& counts) {
  const auto freedom = static_cast<double>(counts.size() - 1);
  EXPECT_NEAR(chi_square(counts), freedom, 6 * std::sqrt(2 * freedom) + 3);
}

TEST(RandomStream, DrawsEveryNumberBelowEquallyOften) {
  for (const std::uint64_t n : {2, 3, 7, 100}) {
    SCOPED_TRACE(n);
    RandomStream stream({15, n});
    std::vector<int> counts(n);
    for (int i = 0; i < 100'000; ++i) ++counts[stream.below(n)];
    expect_even(counts);
  }
}

// Taking the remainder alone would draw the lower third of 3/4 2^64 twice as often.
TEST(RandomStream, IsUnbiasedWhereTheRemainderIsNot) {
  RandomStream stream({16});
  const std::uint64_t n = 3ull << 62;
  std::vector<int> counts(3);
  for (int i = 0; i < 30'000; ++i) ++counts[stream.below(n) >> 62];
  expect_even(counts);
}

TEST(RandomStream, IsUniform) {
  RandomStream stream({17});
  constexpr int kCount = 200'000;
  std::vector<int> counts(64);
  std::vector<int> float_counts(64);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value = stream.uniform();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
    squares += value * value;
    ++counts[static_cast<std::size_t>(value * 64)];
    const float value_float = stream.uniform_float();
    ASSERT_GE(value_float, 0);
    ASSERT_LT(value_float, 1);
    ++float_counts[static_cast<std::size_t>(value_float * 64)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.004);          // deviation 0.00065
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.004);  // deviation 0.00067
  expect_even(counts);
  expect_even(float_counts);
}

TEST(RandomStream, FillsEachBitEquallyOften) {
  RandomStream stream({18});
  constexpr int kCount = 40'000;
  std::array<int, 64> ones{};
  for (int i = 0; i < kCount; ++i) {
    const std::uint64_t draw = stream();
    for (std::size_t bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(draw >> bit & 1);
  }
  for (const int count : ones) EXPECT_NEAR(count, kCount / 2, 600);  // deviation 100
}

TEST(RandomStream, IsNormal) {
  RandomStream stream({19});
  constexpr int kCount = 200'000;
  double sum = 0;
  double squares = 0;
  double cubes = 0;
  double fourths = 0;
  std::vector<int> counts(50);
  for (int i = 0; i < kCount; ++i) {
    const double value = stream.normal();
    sum += value;
    squares += value * value;
    cubes += value * value * value;
    fourths += value * value * value * value;
    const double below = std::erfc(-value / std::sqrt(2.0)) / 2;  // uniform, if `value` is normal
    ++counts[std::min<std::size_t>(static_cast<std::size_t>(below * 50), 49)];
  }
  EXPECT_NEAR(sum / kCount, 0, 0.014);     // deviation 0.0022
  EXPECT_NEAR(squares / kCount, 1, 0.02);  // deviation 0.0032
  EXPECT_NEAR(cubes / kCount, 0, 0.055);   // deviation 0.0087
  EXPECT_NEAR(fourths / kCount, 3, 0.14);  // deviation 0.022
  expect_even(counts);
}

TEST(RandomStream, ShufflesIntoEveryOrderEquallyOften) {
  RandomStream stream({20});
  std::map<std::vector<int>, int> orders;
  for (int i = 0; i < 24'000; ++i) {
    std::vector<int> values = {0, 1, 2, 3};
    stream.shuffle(std::span(values));
    ++orders[values];
  }
  ASSERT_EQ(orders.size(), 24u);
  std::vector<int> counts;
  for (const auto& [order, count] : orders) counts.push_back(count);
  expect_even(counts);
}

TEST(RandomStream, ShufflesNothingAndOneWithoutADraw) {
  RandomStream stream({21});
  std::vector<int> none;
  std::vector<int> one = {5};
  stream.shuffle(std::span(none));
  stream.shuffle(std::span(one));
  EXPECT_EQ(stream.position(), 0u);
  EXPECT_THAT(one, ElementsAre(5));
}

TEST(RandomStream, ServesTheStandardLibrary) {
  RandomStream stream({22});
  std::vector<int> values = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<int> sorted = values;
  std::shuffle(values.begin(), values.end(), stream);
  EXPECT_TRUE(std::is_permutation(values.begin(), values.end(), sorted.begin()));
  EXPECT_GT(stream.position(), 0u);
}

}  // namespace
}  // namespace tutti
