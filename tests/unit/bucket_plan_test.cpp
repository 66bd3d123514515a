#include <tutti/sync/bucket_plan.hpp>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using ::testing::ElementsAre;

TEST(BucketPlan, CutsWhereABucketIsFull) {
  const std::vector<BucketItem> items{{10}, {1}, {1}, {5}, {100}, {1}};
  const std::vector<std::size_t> order{5, 4, 3, 2, 1, 0};
  EXPECT_THAT(plan_buckets(items, order, {.first = Bytes{4}, .size = Bytes{40}}),
              ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(3, 2, 1, 0)));
  EXPECT_THAT(plan_buckets(items, order, {.first = Bytes{1 << 20}, .size = Bytes{1 << 20}}),
              ElementsAre(ElementsAre(5, 4, 3, 2, 1, 0)));
  EXPECT_TRUE(plan_buckets({}, {}, {.first = Bytes{4}, .size = Bytes{40}}).empty());
}

TEST(BucketPlan, HasEachItemOnceInOrderAndOneTypeABucket) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream draws({seed});
    std::vector<BucketItem> items(1 + draws.below(40));
    for (BucketItem& item : items)
      item = {draws.below(1000), draws.below(4) == 0 ? DataType::float64 : DataType::float32};
    std::vector<std::size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0u);
    draws.shuffle(std::span(order));
    const BucketSizes sizes{.first = Bytes{1 + draws.below(2000)}, .size = Bytes{1 + draws.below(8000)}};
    std::vector<std::size_t> together;
    const auto buckets = plan_buckets(items, order, sizes);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      ASSERT_FALSE(buckets[b].empty());
      std::uint64_t before_last = 0;
      for (std::size_t i = 0; i < buckets[b].size(); ++i) {
        const BucketItem& item = items[buckets[b][i]];
        EXPECT_EQ(item.type, items[buckets[b].front()].type) << "seed " << seed;
        if (i + 1 < buckets[b].size()) before_last += item.length * size_of(item.type);
        together.push_back(buckets[b][i]);
      }
      // Full only with its last item.
      if (buckets[b].size() > 1) {
        EXPECT_LT(before_last, (b == 0 ? sizes.first : sizes.size).value) << "seed " << seed;
      }
    }
    EXPECT_EQ(together, order) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tutti
