#include <tutti/base/array.hpp>

#include <array>
#include <list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

// What may be written to, and outlives the call, becomes an Array.
static_assert(std::is_convertible_v<std::vector<float>&, Array>);
static_assert(std::is_convertible_v<std::span<double>, Array>);
static_assert(std::is_convertible_v<std::array<std::int64_t, 3>&, Array>);
static_assert(std::is_convertible_v<float (&)[4], Array>);
static_assert(!std::is_convertible_v<const std::vector<float>&, Array>);
static_assert(!std::is_convertible_v<std::span<const float>, Array>);
static_assert(!std::is_convertible_v<std::vector<float>, Array>);
static_assert(!std::is_convertible_v<std::list<float>&, Array>);
static_assert(!std::is_convertible_v<std::vector<bool>&, Array>);
static_assert(!std::is_convertible_v<std::string&, Array>);
static_assert(!std::is_convertible_v<ConstArray, Array>);

static_assert(std::is_convertible_v<const std::vector<float>&, ConstArray>);
static_assert(std::is_convertible_v<std::span<const float>, ConstArray>);
static_assert(std::is_convertible_v<std::vector<float16>&, ConstArray>);
static_assert(std::is_convertible_v<Array, ConstArray>);
static_assert(!std::is_convertible_v<const std::string&, ConstArray>);

template <typename A, typename T>
void expect_refers_to(const A& array, const std::vector<T>& values) {
  EXPECT_EQ(static_cast<const void*>(array.data()), values.data());
  EXPECT_EQ(array.length(), values.size());
  EXPECT_EQ(array.type(), data_type_of<T>);
  EXPECT_EQ(array.bytes(), values.size() * sizeof(T));
}

TEST(Array, RefersToTheElementsItWasMadeFrom) {
  for (const DataType type : kAllDataTypes) {
    dispatch(type, []<typename T>(std::type_identity<T>) {
      for (const std::size_t length : {0, 1, 7}) {
        std::vector<T> values(length);
        expect_refers_to(Array(values), values);
        expect_refers_to(Array(std::span(values)), values);
        expect_refers_to(ConstArray(values), values);
        expect_refers_to(ConstArray(std::as_const(values)), values);
        expect_refers_to(ConstArray(Array(values)), values);
      }
    });
  }
}

TEST(Array, SlicesByElements) {
  std::vector<double> values = {0, 1, 2, 3, 4};
  const Array slice = Array(values).slice(1, 3);
  EXPECT_EQ(slice.length(), 3u);
  EXPECT_EQ(slice.type(), DataType::float64);
  EXPECT_EQ(static_cast<void*>(slice.data()), &values[1]);
  const ConstArray inner = ConstArray(slice).slice(2, 1);
  EXPECT_EQ(static_cast<const void*>(inner.data()), &values[3]);
  EXPECT_EQ(Array(values).slice(5, 0).length(), 0u);
}

TEST(Array, IsEmptyByDefault) {
  EXPECT_EQ(Array().bytes(), 0u);
  EXPECT_EQ(Array().slice(0, 0).data(), nullptr);
  EXPECT_EQ(ConstArray().length(), 0u);
}

}  // namespace
}  // namespace tutti
