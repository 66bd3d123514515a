#include <tutti/base/data_type.hpp>

#include <iterator>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

namespace tutti {
namespace {

static_assert(data_type_of<float> == DataType::float32);
static_assert(data_type_of<double> == DataType::float64);
static_assert(data_type_of<float16> == DataType::float16);
static_assert(data_type_of<bfloat16> == DataType::bfloat16);
static_assert(data_type_of<std::int32_t> == DataType::int32);
static_assert(data_type_of<std::int64_t> == DataType::int64);
static_assert(!Element<char> && !Element<bool> && !Element<std::uint32_t> && !Element<const float>);

TEST(DataType, DispatchesToItsElementType) {
  for (const DataType type : kAllDataTypes) {
    const DataType dispatched = dispatch(type, []<typename T>(std::type_identity<T>) { return data_type_of<T>; });
    EXPECT_EQ(dispatched, type) << to_string(type);
  }
}

TEST(DataType, KnowsItsSize) {
  EXPECT_EQ(size_of(DataType::float32), 4u);
  EXPECT_EQ(size_of(DataType::float64), 8u);
  EXPECT_EQ(size_of(DataType::float16), 2u);
  EXPECT_EQ(size_of(DataType::bfloat16), 2u);
  EXPECT_EQ(size_of(DataType::int32), 4u);
  EXPECT_EQ(size_of(DataType::int64), 8u);
}

TEST(DataType, KnowsWhetherItIsFloating) {
  for (const DataType type : kAllDataTypes)
    EXPECT_EQ(is_floating(type), to_string(type).find("float") != std::string_view::npos) << to_string(type);
}

TEST(DataType, HasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const DataType type : kAllDataTypes) names.insert(to_string(type));
  EXPECT_EQ(names, (std::set<std::string_view>{"float32", "float64", "float16", "bfloat16", "int32", "int64"}));
  EXPECT_EQ(to_string(DataType::bfloat16), "bfloat16");
  EXPECT_EQ(to_string(DataType::int32), "int32");
}

}  // namespace
}  // namespace tutti
