#include "cli/test_values.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tutti::cli {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};

template <typename T>
class TestValues : public testing::Test {};

using Types = testing::Types<float, double, float16, bfloat16, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(TestValues, Types);

// What ranks hold, and what an all-reduce makes of it.
template <typename T>
struct World {
  World(int ranks, std::size_t length, ReduceOp reduce_op) : op(reduce_op), arrays(ranks, std::vector<T>(length)) {
    for (int rank = 0; rank < ranks; ++rank) fill(std::span(arrays[rank]), rank, scale());
  }

  double scale() const { return first_scale(data_type_of<T>, op); }

  void all_reduce() {
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    for (std::vector<T>& array : arrays) {
      sources.push_back(array.data());
      destinations.push_back(array.data());
    }
    fold_all(op, data_type_of<T>, sources, destinations, arrays[0].size());
  }

  ReduceOp op;
  std::vector<std::vector<T>> arrays;
};

TYPED_TEST(TestValues, TheReductionOfWhatWasFilledIsRight) {
  for (const ReduceOp op : kOps) {
    if (op == ReduceOp::mean && !is_floating(data_type_of<TypeParam>)) continue;
    for (const int ranks : {1, 2, 3, 5, 8, 64}) {
      World<TypeParam> world(ranks, 1000, op);
      world.all_reduce();
      EXPECT_FALSE(first_wrong(std::span<const TypeParam>(world.arrays[0]), op, ranks, world.scale()));
    }
  }
}

TYPED_TEST(TestValues, AnythingElseIsWrong) {
  for (const int ranks : {2, 3, 8}) {
    World<TypeParam> world(ranks, 1000, ReduceOp::sum);
    const auto is_wrong = [&] {
      return first_wrong(std::span<const TypeParam>(world.arrays[0]), ReduceOp::sum, ranks, world.scale()).has_value();
    };
    EXPECT_TRUE(is_wrong()) << "nobody reduced";
    world.all_reduce();
    world.arrays[0][999] = world.arrays[0][998 - 1];
    world.arrays[0].insert(world.arrays[0].begin(), world.arrays[0].front());
    EXPECT_TRUE(is_wrong()) << "in the wrong place";
    World<TypeParam> fewer(ranks - 1, 1000, ReduceOp::sum);
    fewer.all_reduce();
    world.arrays[0] = fewer.arrays[0];
    EXPECT_TRUE(is_wrong()) << "a rank was left out";
  }
}

template <typename T>
class FloatingTestValues : public testing::Test {};

using FloatingTypes = testing::Types<float, double, float16, bfloat16>;
TYPED_TEST_SUITE(FloatingTestValues, FloatingTypes);

TYPED_TEST(FloatingTestValues, StayFiniteAndNormalForAsManyCallsAsAFillingAllows) {
  for (const int ranks : {2, 3, 8, 64}) {
    World<TypeParam> world(ranks, 100, ReduceOp::sum);
    const std::uint64_t calls = calls_per_filling(data_type_of<TypeParam>, ReduceOp::sum, ranks);
    EXPECT_GE(calls, 2u);
    for (std::uint64_t i = 0; i < calls; ++i) world.all_reduce();
    for (const TypeParam value : world.arrays[0]) {
      EXPECT_TRUE(std::isnormal(detail::to_double(value))) << ranks;
      EXPECT_LT(detail::to_double(value), 1e306);
    }
  }
}

TEST(PageMemory, BeginsOnAPage) {
  for (const std::size_t bytes : {0u, 4u, 4096u, 100000u}) {
    PageMemory memory(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.as<float>().data()) % 4096, 0u);
    EXPECT_EQ(memory.as<float>().size(), bytes / sizeof(float));
  }
}

}  // namespace
}  // namespace tutti::cli
