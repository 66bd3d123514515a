#include <tutti/base/parameter_set.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::usage_error;

ParameterSet small_net() {
  const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::int64_t> steps{9};
  ParameterSet set;
  set.add("hidden.weight", {2, 3}, std::span(values).first(6));
  set.add("hidden.bias", {2}, std::span(values).last(2));
  set.add("steps", {}, steps);
  return set;
}

TEST(ParameterSet, KeepsArraysInOrder) {
  const ParameterSet set = small_net();
  EXPECT_EQ(set.size(), 3u);
  EXPECT_FALSE(set.empty());
  EXPECT_EQ(set.bytes(), 24u + 8 + 8);
  EXPECT_THAT(set.names(), ElementsAre("hidden.weight", "hidden.bias", "steps"));
  std::vector<std::string> seen;
  for (const NamedArray& array : set) seen.push_back(array.name());
  EXPECT_EQ(seen, set.names());
  EXPECT_EQ(set[1].name(), "hidden.bias");
}

TEST(ParameterSet, FindsByName) {
  ParameterSet set = small_net();
  const NamedArray& weight = set.at("hidden.weight");
  EXPECT_EQ(weight.shape(), (Shape{2, 3}));
  EXPECT_EQ(weight.type(), DataType::float32);
  EXPECT_EQ(weight.length(), 6u);
  EXPECT_THAT(weight.values<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(&set.at("steps"), &set[2]);
  EXPECT_EQ(set.find("steps"), &set[2]);
  EXPECT_EQ(set.find("hidden"), nullptr);
  EXPECT_EQ(std::as_const(set).find("steps"), &set[2]);
}

TEST(ParameterSet, OffersTheNearestName) {
  ParameterSet set = small_net();
  EXPECT_EQ(usage_error([&] { set.at("hiden.weight"); }),
            R"(there is no parameter "hiden.weight"; did you mean "hidden.weight"?)");
  EXPECT_EQ(usage_error([&] { std::as_const(set).at("something else"); }), R"(there is no parameter "something else")");
  EXPECT_EQ(usage_error([] { ParameterSet().at("a"); }), R"(there is no parameter "a")");
}

TEST(ParameterSet, GivesViewsThatWriteThrough) {
  ParameterSet set;
  const Array added = set.add({.name = "a", .shape = {4}});
  EXPECT_EQ(added.length(), 4u);
  EXPECT_THAT(set.at("a").values<float>(), Each(0.0f));
  set.at("a").values<float>()[2] = 5;
  EXPECT_EQ(set.at("a").array().data(), added.data());
  EXPECT_EQ(reinterpret_cast<const float*>(added.data())[2], 5.0f);
  const ParameterSet& constant = set;
  static_assert(std::is_same_v<decltype(constant.at("a").array()), ConstArray>);
  static_assert(std::is_same_v<decltype(constant[0].bytes()), std::span<const std::byte>>);
  EXPECT_EQ(constant[0].array().bytes(), 16u);
  for (NamedArray& array : set) array.values<float>()[0] = 1;
  EXPECT_THAT(constant[0].values<float>(), ElementsAre(1, 0, 5, 0));
}

TEST(ParameterSet, TakesEveryTypeInAlignedMemory) {
  ParameterSet set;
  for (const DataType type : kAllDataTypes) {
    const std::string name(to_string(type));
    const Array array = set.add({.name = name, .shape = {3, 1}, .type = type});
    EXPECT_EQ(array.type(), type);
    EXPECT_EQ(set.at(name).bytes().size(), 3 * size_of(type));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data()) % 64, 0u);
  }
}

TEST(ParameterSet, TakesNumbersAndEmptyArrays) {
  ParameterSet set;
  EXPECT_EQ(set.add({.name = "number"}).length(), 1u);
  EXPECT_EQ(set.add({.name = "empty", .shape = {3, 0}}).length(), 0u);
  EXPECT_EQ(set.add("none", {0}, std::span<const double>()).length(), 0u);
  EXPECT_EQ(set.bytes(), 4u);
  EXPECT_EQ(set, ParameterSet(set));
}

TEST(ParameterSet, RefusesWhatDoesNotFit) {
  ParameterSet set = small_net();
  const std::vector<float> six(6);
  const auto added = [&](Shape shape) { return usage_error([&] { set.add("x", shape, six); }); };
  EXPECT_EQ(added({2, 2}), R"("x": float32 [2, 2] takes 16 bytes, and 24 were given)");
  EXPECT_EQ(added({7}), R"("x": float32 [7] takes 28 bytes, and 24 were given)");
  EXPECT_EQ(added({}), R"("x": float32 [] takes 4 bytes, and 24 were given)");
  EXPECT_EQ(added({-2, -3}), R"("x": no array is float32 [-2, -3])");
  EXPECT_EQ(usage_error([&] {
              set.add({.name = "x", .shape = {1 << 30, 1 << 30}});
            }),
            R"("x": no array is float32 [1073741824, 1073741824])");
  EXPECT_EQ(usage_error([&] {
              set.add({.name = "x", .shape = {1}, .type = DataType::int64}, std::as_bytes(std::span(six)).first(7));
            }),
            R"("x": int64 [1] takes 8 bytes, and 7 were given)");
  EXPECT_EQ(usage_error([&] { set.add("steps", {6}, six); }), R"(there is a parameter "steps" already)");
  EXPECT_EQ(set, small_net());
}

TEST(ParameterSet, RefusesToBeReadAsAnotherType) {
  ParameterSet set = small_net();
  EXPECT_EQ(usage_error([&] { set.at("steps").values<float>(); }), R"("steps" is of int64, not of float32)");
  EXPECT_EQ(usage_error([&] { std::as_const(set).at("hidden.bias").values<double>(); }),
            R"("hidden.bias" is of float32, not of float64)");
}

TEST(ParameterSet, MovesWithoutTouchingItsArrays) {
  static_assert(std::is_nothrow_move_constructible_v<ParameterSet> && std::is_nothrow_move_assignable_v<ParameterSet>);
  static_assert(!std::is_copy_assignable_v<NamedArray>);  // a set would lose a name
  ParameterSet set = small_net();
  const std::byte* memory = set[0].bytes().data();
  ParameterSet moved = std::move(set);
  EXPECT_EQ(moved[0].bytes().data(), memory);
  for (int i = 0; i < 100; ++i) moved.add({.name = std::to_string(i), .shape = {1}});
  EXPECT_EQ(moved.at("hidden.weight").bytes().data(), memory);
  set = std::move(moved);
  EXPECT_EQ(set.at("hidden.weight").bytes().data(), memory);
  EXPECT_EQ(set.size(), 103u);
}

TEST(ParameterSet, CopiesAreIndependent) {
  const ParameterSet set = small_net();
  ParameterSet copy = set;
  EXPECT_EQ(copy, set);
  copy.at("hidden.bias").values<float>()[0] = 0;
  EXPECT_NE(copy, set);
  copy = set;
  EXPECT_EQ(copy, set);
  EXPECT_NE(copy[0].bytes().data(), set[0].bytes().data());
  copy.add({.name = "more"});
  EXPECT_EQ(set.find("more"), nullptr);
  const ParameterSet& same = copy;
  copy = same;
  EXPECT_EQ(copy.size(), 4u);
}

TEST(ParameterSet, ComparesBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto of = [](float value) {
    ParameterSet set;
    set.add("a", {1}, std::span(&value, 1));
    return set;
  };
  EXPECT_EQ(of(nan), of(nan));
  EXPECT_NE(of(0.0f), of(-0.0f));
  EXPECT_EQ(ParameterSet(), ParameterSet());
  EXPECT_NE(ParameterSet(), of(0));
}

TEST(ParameterSet, SaysHowLayoutsDiffer) {
  const ParameterSet set = small_net();
  const auto difference = [&](const ParameterSet& other) {
    const std::string sentence = set.layout_difference(other);
    EXPECT_EQ(set.same_layout(other), sentence.empty());
    return sentence;
  };
  ParameterSet other = small_net();
  other.at("hidden.bias").values<float>()[0] = 0;  // values are no matter
  EXPECT_EQ(difference(other), "");
  other.add({.name = "more"});
  EXPECT_EQ(difference(other), R"("more" is not expected)");
  EXPECT_EQ(difference({}), R"("hidden.weight" is missing)");

  ParameterSet shape;
  shape.add({.name = "hidden.weight", .shape = {3, 2}});
  EXPECT_EQ(difference(shape), R"("hidden.weight" is float32 [3, 2], expected float32 [2, 3])");

  ParameterSet type;
  type.add({.name = "hidden.weight", .shape = {2, 3}, .type = DataType::bfloat16});
  EXPECT_EQ(difference(type), R"("hidden.weight" is bfloat16 [2, 3], expected float32 [2, 3])");

  ParameterSet order;
  for (const std::size_t i : {0, 2, 1}) order.add(set[i].layout());
  EXPECT_EQ(difference(order), R"("steps" comes where "hidden.bias" is expected)");
}

TEST(ParameterSet, IsFilledByNameFromAnother) {
  ParameterSet all;
  const std::vector<float> values = {1, 2};
  all.add("its/b", {2}, values);
  all.add({.name = "b", .shape = {3}});
  ParameterSet set;
  set.add({.name = "b", .shape = {2}});
  copy_named(all, set, "its/");
  EXPECT_EQ(set.at("b").values<float>()[1], 2.0F);
  EXPECT_EQ(usage_error([&] { copy_named(all, set); }), "\"b\" is float32 [3], expected float32 [2]");
  EXPECT_NE(usage_error([&] { copy_named(all, set, "it/"); }), "");
  EXPECT_EQ(set.at("b").values<float>()[1], 2.0F);
}

TEST(ParameterSet, FindsAmongMany) {
  ParameterSet set;
  for (int i = 0; i < 20'000; ++i) set.add({.name = std::to_string(i), .type = DataType::int32});
  for (int i = 0; i < 20'000; ++i) ASSERT_EQ(set.find(std::to_string(i)), &set[static_cast<std::size_t>(i)]);
}

}  // namespace
}  // namespace tutti
