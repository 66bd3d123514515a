#include <tutti/base/half.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

// How the bits of a format divide up; what each test runs for both formats.
template <typename Half>
struct Format;

template <>
struct Format<float16> {
  static constexpr int kExponentBits = 5;
  static constexpr int kFractionBits = 10;
};

template <>
struct Format<bfloat16> {
  static constexpr int kExponentBits = 8;
  static constexpr int kFractionBits = 7;
};

// The value of non-negative finite bits, from the definition of the format.
template <typename Half>
double value_of(unsigned bits) {
  const int bias = (1 << (Format<Half>::kExponentBits - 1)) - 1;
  const int fraction_bits = Format<Half>::kFractionBits;
  const int exponent = static_cast<int>(bits >> fraction_bits);
  const int fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1));
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <typename Half>
constexpr unsigned kInfinity = ((1u << Format<Half>::kExponentBits) - 1) << Format<Half>::kFractionBits;

// Rounds by looking at every value the format has, as the standard tells it: to the nearest; halfway, to the even one;
// infinity in the place of the value that would come after the largest.
template <typename Half>
class Oracle {
 public:
  Oracle() {
    for (unsigned bits = 0; bits <= kInfinity<Half>; ++bits) values_.push_back(value_of<Half>(bits));
  }

  std::uint16_t round(float value) const {
    const unsigned sign = std::signbit(value) ? 0x8000u : 0;
    const double magnitude = std::abs(static_cast<double>(value));
    if (magnitude >= values_.back()) return static_cast<std::uint16_t>(sign | kInfinity<Half>);
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    const auto bits = static_cast<unsigned>(above - values_.begin()) - 1;
    const double middle = (values_[bits] + values_[bits + 1]) / 2;
    const bool up = magnitude > middle || (magnitude == middle && bits % 2 == 1);
    return static_cast<std::uint16_t>(sign | (up ? bits + 1 : bits));
  }

 private:
  std::vector<double> values_;
};

template <typename Half>
class HalfTest : public ::testing::Test {};

class FormatNames {
 public:
  template <typename Half>
  static std::string GetName(int) {
    return std::is_same_v<Half, float16> ? "float16" : "bfloat16";
  }
};

using Formats = ::testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(HalfTest, Formats, FormatNames);

TYPED_TEST(HalfTest, KeepsEveryBitPatternThroughFloat) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const TypeParam half{static_cast<std::uint16_t>(bits)};
    const float value = half.to_float();
    const unsigned magnitude = bits & 0x7fffu;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000) << std::hex << bits;
    if (magnitude > kInfinity<TypeParam>) {
      // NaNs become the one quiet NaN.
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      const unsigned quiet = kInfinity<TypeParam> | (1u << (Format<TypeParam>::kFractionBits - 1));
      ASSERT_EQ(TypeParam::from_float(value).bits, (bits & 0x8000u) | quiet) << std::hex << bits;
    } else {
      const double expected =
          magnitude == kInfinity<TypeParam> ? std::numeric_limits<double>::infinity() : value_of<TypeParam>(magnitude);
      ASSERT_EQ(std::abs(static_cast<double>(value)), expected) << std::hex << bits;
      ASSERT_EQ(TypeParam::from_float(value), half) << std::hex << bits;
    }
  }
}

TYPED_TEST(HalfTest, RoundsTiesToEvenAndTheirNeighboursToTheNearest) {
  const Oracle<TypeParam> oracle;
  for (unsigned bits = 0; bits < kInfinity<TypeParam>; ++bits) {
    const auto middle = static_cast<float>((value_of<TypeParam>(bits) + value_of<TypeParam>(bits + 1)) / 2);
    for (const float value :
         {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
      ASSERT_EQ(TypeParam::from_float(value).bits, oracle.round(value)) << std::hexfloat << value;
      ASSERT_EQ(TypeParam::from_float(-value).bits, oracle.round(-value)) << std::hexfloat << -value;
    }
  }
}

TYPED_TEST(HalfTest, RoundsRandomFloatsToTheNearest) {
  constexpr std::uint32_t kSeed = 20240607;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  const Oracle<TypeParam> oracle;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(TypeParam::from_float(value).bits, oracle.round(value)) << std::hexfloat << value;
  }
}

TYPED_TEST(HalfTest, RoundsTheEdgesOfFloat) {
  using Limits = std::numeric_limits<float>;
  const Oracle<TypeParam> oracle;
  for (const float value : {0.0f, Limits::denorm_min(), Limits::min(), std::nextafter(Limits::min(), 0.0f),
                            Limits::max(), Limits::infinity()}) {
    EXPECT_EQ(TypeParam::from_float(value).bits, oracle.round(value)) << std::hexfloat << value;
    EXPECT_EQ(TypeParam::from_float(-value).bits, oracle.round(-value)) << std::hexfloat << -value;
  }
}

TEST(Float16, OverflowsFromHalfwayBeyondItsLargestValue) {
  EXPECT_EQ(float16::from_float(65504).bits, 0x7bff);
  EXPECT_EQ(float16::from_float(65519.996f).bits, 0x7bff);
  EXPECT_EQ(float16::from_float(65520).bits, 0x7c00);
  EXPECT_EQ(float16::from_float(-65520).bits, 0xfc00);
}

TEST(Float16, KnowsFamousValues) {
  EXPECT_EQ(float16::from_float(1).bits, 0x3c00);
  EXPECT_EQ(float16::from_float(-2).bits, 0xc000);
  EXPECT_EQ(float16::from_float(0.1f).bits, 0x2e66);
  EXPECT_EQ(float16::from_float(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(float16::from_float(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(bfloat16::from_float(1).bits, 0x3f80);
  EXPECT_EQ(bfloat16::from_float(0.1f).bits, 0x3dcd);
}

}  // namespace
}  // namespace tutti
