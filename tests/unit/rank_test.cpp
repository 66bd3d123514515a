#include <tutti/base/rank.hpp>

#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Rank, OrdersByValue) {
  EXPECT_LT(Rank{1}, Rank{2});
  EXPECT_EQ(Rank{3}, Rank{3});
  EXPECT_NE(Rank{0}, Rank{1});
  EXPECT_EQ(Rank{}, Rank{0});
}

TEST(Rank, AllRanksCountsFromZero) {
  for (const int size : {0, 1, 2, 5, 8}) {
    std::vector<Rank> ranks;
    for (const Rank rank : all_ranks(size)) ranks.push_back(rank);
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) EXPECT_EQ(ranks[static_cast<std::size_t>(i)], Rank{i});
  }
}

TEST(Rank, IsWrittenAsPeopleSayIt) {
  EXPECT_EQ(to_string(Rank{2}), "rank 2");
  EXPECT_EQ(to_string(std::vector<Rank>{}), "no rank");
  EXPECT_EQ(to_string(std::vector{Rank{7}}), "rank 7");
  EXPECT_EQ(to_string(std::vector{Rank{0}, Rank{3}}), "ranks 0 and 3");
  EXPECT_EQ(to_string(std::vector{Rank{0}, Rank{1}, Rank{3}}), "ranks 0, 1 and 3");
}

TEST(Rank, AllButOneAreTheOthersInOrder) {
  EXPECT_EQ(all_ranks_but(Rank{1}, 4), (std::vector{Rank{0}, Rank{2}, Rank{3}}));
  EXPECT_TRUE(all_ranks_but(Rank{0}, 1).empty());
}

TEST(Rank, IsAKeyOfHashedContainers) {
  std::unordered_set<Rank> ranks;
  for (const Rank rank : all_ranks(100)) ranks.insert(rank);
  for (const Rank rank : all_ranks(100)) ranks.insert(rank);
  EXPECT_EQ(ranks.size(), 100u);
  EXPECT_TRUE(ranks.contains(Rank{42}));
  EXPECT_FALSE(ranks.contains(Rank{100}));
}

TEST(Tag, LeavesTheUpperHalfToTutti) {
  EXPECT_LT(Tag{kFirstInternalTag - 1}, Tag{kFirstInternalTag});
  EXPECT_EQ(Tag{kFirstInternalTag}.value, 0x8000'0000'0000'0000u);
}

}  // namespace
}  // namespace tutti
