#include <tutti/kernels/inspect.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/instructions.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

template <typename T>
void expect_found_at_every_place(DataType type) {
  using Limits = std::numeric_limits<T>;
  for (std::size_t length : {1, 7, 16, 33, 1000}) {
    std::vector<T> values(length, T{1});
    EXPECT_TRUE(all_finite(type, values.data(), length));
    for (T finite : {T{0}, -T{0}, Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min()}) {
      values[length / 2] = finite;
      EXPECT_TRUE(all_finite(type, values.data(), length)) << finite;
    }
    for (std::size_t place = 0; place<length; place += length> 100 ? 37 : 1) {
      for (T other : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::signaling_NaN(), Limits::infinity(),
                      -Limits::infinity()}) {
        std::vector<T> found = values;
        found[place] = other;
        EXPECT_FALSE(all_finite(type, found.data(), length)) << other << " at " << place << " of " << length;
      }
    }
  }
  EXPECT_TRUE(all_finite(type, nullptr, 0));
}

TEST(AllFinite, FindsWhatIsNotFiniteAtEveryPlace) {
  testing::with_all_instructions([] {
    expect_found_at_every_place<float>(DataType::float32);
    expect_found_at_every_place<double>(DataType::float64);
  });
}

template <typename T>
void expect_the_sum_of_squares(DataType type) {
  for (std::size_t length : {0, 1, 7, 15, 16, 17, 100, 5000}) {
    SCOPED_TRACE(length);
    RandomStream draws({1, length});
    std::vector<T> values(length);
    long double expected = 0;
    for (T& value : values) {
      value = static_cast<T>(draws.normal());
      expected += static_cast<long double>(value) * static_cast<long double>(value);
    }
    std::vector<double> found;
    testing::with_all_instructions([&] {
      found.push_back(sum_of_squares(type, values.data(), length));
      EXPECT_NEAR(found.back(), static_cast<double>(expected), 1e-12 * static_cast<double>(expected));
      EXPECT_EQ(found.back(), found.front());
      EXPECT_EQ(found.back(), sum_of_squares(type, std::vector<T>(values).data(), length));
    });
  }
}

TEST(SumOfSquares, IsTakenInDoubleWithTheSameBitsOnEveryCpu) {
  expect_the_sum_of_squares<float>(DataType::float32);
  expect_the_sum_of_squares<double>(DataType::float64);
  const std::vector<float> large(20, 1e30F);
  EXPECT_NEAR(sum_of_squares(DataType::float32, large.data(), large.size()), 2e61, 1e55);
}

TEST(Inspect, RefusesOtherTypes) {
  const std::int32_t value = 1;
  EXPECT_EQ(testing::usage_error([&] { (void)all_finite(DataType::int32, &value, 1); }),
            "only float32 and float64 are looked at, not int32");
  EXPECT_EQ(testing::usage_error([&] { (void)sum_of_squares(DataType::float16, &value, 1); }),
            "only float32 and float64 are looked at, not float16");
}

}  // namespace
}  // namespace tutti
