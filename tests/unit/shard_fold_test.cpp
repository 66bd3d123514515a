#include <tutti/sync/shard_fold.hpp>

#include <bit>
#include <cstring>
#include <optional>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

template <typename T>
using Values = std::optional<std::vector<T>>;  // none where a shard contributes nothing

// The book: split at the largest power of two below the number of shards.
template <typename T>
Values<T> naive_sum(std::span<const Values<T>> shards) {
  if (shards.size() == 1) return shards.front();
  const std::size_t left_count = std::bit_floor(shards.size() - 1);
  Values<T> left = naive_sum<T>(shards.first(left_count));
  const Values<T> right = naive_sum<T>(shards.subspan(left_count));
  if (!left) return right;
  if (!right) return left;
  for (std::size_t i = 0; i < left->size(); ++i) (*left)[i] += (*right)[i];
  return left;
}

template <typename T>
std::vector<Values<T>> draw_shards(int shards, std::size_t length, double missing, std::uint64_t seed) {
  RandomStream draws({seed, static_cast<std::uint64_t>(shards), length});
  std::vector<Values<T>> result;
  for (int shard = 0; shard < shards; ++shard) {
    std::vector<T> values(length);
    for (T& value : values) value = static_cast<T>((draws.uniform() - 0.5) * (draws.below(4) == 0 ? 1e6 : 1.0));
    result.push_back(draws.uniform() < missing ? Values<T>() : Values<T>(std::move(values)));
  }
  return result;
}

// What workers do with contiguous shares of the shards: each merges the neighbours that it has.
template <typename T>
class Workers {
 public:
  explicit Workers(const std::vector<Values<T>>& shards) : values_(shards), shards_(static_cast<int>(values_.size())) {
    for (Values<T>& one : values_) {
      if (one) one->reserve(one->size() + 1);  // an array of no values still lies somewhere
    }
  }

  // `begins[w]` is worker w's first shard.
  std::vector<ShardPart> parts(const std::vector<int>& begins) {
    std::vector<ShardPart> all;
    for (std::size_t w = 0; w < begins.size(); ++w) {
      const int end = w + 1 < begins.size() ? begins[w + 1] : shards_;
      const std::size_t own = all.size();
      for (int shard = begins[w]; shard < end; ++shard) {
        Values<T>& its = values_[static_cast<std::size_t>(shard)];
        all.push_back({shard, 1, its ? its->data() : nullptr});
        while (all.size() > own + 1 && merge(all)) {
        }
      }
    }
    return all;
  }

 private:
  bool merge(std::vector<ShardPart>& all) {
    ShardPart& left = all[all.size() - 2];
    const ShardPart right = all.back();
    if (neighbour_in_tree(shards_, left.first, left.count) != right.count) return false;
    if (left.data == nullptr) {
      left.data = right.data;
    } else if (right.data != nullptr) {
      std::vector<T>& sum = *values_[shard_at(left.data)];
      const auto* other = static_cast<const T*>(right.data);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    }
    left.count += right.count;
    all.pop_back();
    return true;
  }
  std::size_t shard_at(const void* data) const {
    std::size_t shard = 0;
    while (!values_[shard] || values_[shard]->data() != data) ++shard;
    return shard;
  }

  std::vector<Values<T>> values_;
  int shards_;
};

template <typename T>
std::vector<unsigned char> bits_of(const std::vector<T>& values) {
  std::vector<unsigned char> bits(values.size() * sizeof(T));
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), bits.size());
  return bits;
}

// Calls f with every way to cut `shards` into so many contiguous shares; empty ones, too.
template <typename F>
void for_every_cut(int shards, int workers, std::vector<int>& begins, const F& f) {
  if (static_cast<int>(begins.size()) == workers) return f(begins);
  for (int next = begins.empty() ? 0 : begins.back(); next <= (begins.empty() ? 0 : shards); ++next) {
    begins.push_back(next);
    for_every_cut(shards, workers, begins, f);
    begins.pop_back();
  }
}

template <typename T>
void expect_the_naive_sum(DataType type, const std::vector<Values<T>>& shards, const std::vector<int>& begins) {
  const Values<T> expected = naive_sum<T>(shards);
  const std::size_t length = [&] {
    for (const Values<T>& one : shards) {
      if (one) return one->size();
    }
    return std::size_t{5};
  }();
  Workers<T> workers(shards);
  const std::vector<ShardPart> parts = workers.parts(begins);
  std::vector<T> result(length, T{42});
  const bool written = fold_shards(type, static_cast<int>(shards.size()), parts, result.data(), length);
  ASSERT_EQ(written, expected.has_value());
  ASSERT_EQ(bits_of(result), bits_of(expected.value_or(std::vector<T>(length, T{42}))))
      << ::testing::PrintToString(begins);
  // Into one of the parts themselves.
  for (const ShardPart& part : parts) {
    if (part.data == nullptr || !expected) continue;
    Workers<T> again(shards);
    std::vector<ShardPart> its = again.parts(begins);
    const auto which = static_cast<std::size_t>(&part - parts.data());
    auto* destination = static_cast<T*>(const_cast<void*>(its[which].data));  // NOLINT(*-const-cast)
    fold_shards(type, static_cast<int>(shards.size()), its, destination, length);
    ASSERT_EQ(bits_of(std::vector<T>(destination, destination + length)), bits_of(*expected));
    break;
  }
}

template <typename T>
void expect_the_same_bits_for_every_cut(DataType type, double missing) {
  constexpr std::uint64_t kSeed = 3;
  for (int shards = 1; shards <= 16; ++shards) {
    const std::vector<Values<T>> values = draw_shards<T>(shards, 7, missing, kSeed);
    for (int workers = 1; workers <= 8; ++workers) {
      SCOPED_TRACE("shards " + std::to_string(shards) + ", workers " + std::to_string(workers) + ", seed " +
                   std::to_string(kSeed));
      // All of them where they are few, and otherwise some, drawn.
      if (workers <= 4 || shards <= 6) {
        std::vector<int> begins;
        for_every_cut(shards, workers, begins,
                      [&](const std::vector<int>& cut) { expect_the_naive_sum(type, values, cut); });
      } else {
        RandomStream draws({kSeed, static_cast<std::uint64_t>(shards), static_cast<std::uint64_t>(workers)});
        for (int i = 0; i < 200; ++i) {
          std::vector<int> cut{0};
          while (static_cast<int>(cut.size()) < workers)
            cut.push_back(static_cast<int>(draws.below(static_cast<std::uint64_t>(shards) + 1)));
          std::ranges::sort(cut);
          expect_the_naive_sum(type, values, cut);
        }
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(ShardFold, GivesTheBitsOfTheTreeOverTheShardsHoweverTheyAreCut) {
  expect_the_same_bits_for_every_cut<float>(DataType::float32, 0);
  expect_the_same_bits_for_every_cut<double>(DataType::float64, 0);
}

TEST(ShardFold, LeavesOutShardsThatContributeNothing) {
  expect_the_same_bits_for_every_cut<float>(DataType::float32, 0.3);
  expect_the_same_bits_for_every_cut<double>(DataType::float64, 0.8);
}

TEST(ShardFold, TakesArraysOfAnyLength) {
  for (std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{5000}}) {
    for (int shards : {1, 3, 6, 8, 13}) {
      for (double missing : {0.0, 0.4}) {
        SCOPED_TRACE("length " + std::to_string(length) + ", shards " + std::to_string(shards));
        for (const std::vector<int>& cut :
             {std::vector{0}, std::vector{0, shards / 2}, std::vector{0, shards / 3, 2 * shards / 3}}) {
          expect_the_naive_sum(DataType::float32, draw_shards<float>(shards, length, missing, 5), cut);
          expect_the_naive_sum(DataType::float64, draw_shards<double>(shards, length, missing, 5), cut);
        }
      }
    }
  }
}

TEST(ShardFold, WritesNothingWhereNobodyContributes) {
  float result = 42;
  const std::vector<ShardPart> parts{{0, 2, nullptr}, {2, 1, nullptr}};
  EXPECT_FALSE(fold_shards(DataType::float32, 3, parts, &result, 1));
  EXPECT_EQ(result, 42);
}

TEST(ShardFold, AWorkerKeepsAPartForEachSubtreeThatIsNotComplete) {
  EXPECT_EQ(most_parts_at_once(1, 1), 1u);
  EXPECT_EQ(most_parts_at_once(2, 2), 1u);
  EXPECT_EQ(most_parts_at_once(8, 8), 1u);
  EXPECT_EQ(most_parts_at_once(8, 1), 4u);  // of 4, 2, 1, and the last
  EXPECT_EQ(most_parts_at_once(8, 2), 3u);
  EXPECT_EQ(most_parts_at_once(65'536, 1), 17u);
}

TEST(NeighbourInTree, IsTheOtherHalfOfTheNode) {
  EXPECT_EQ(neighbour_in_tree(1, 0, 1), std::nullopt);
  EXPECT_EQ(neighbour_in_tree(2, 0, 1), 1);
  EXPECT_EQ(neighbour_in_tree(2, 1, 1), std::nullopt);
  EXPECT_EQ(neighbour_in_tree(6, 0, 4), 2);
  EXPECT_EQ(neighbour_in_tree(6, 0, 2), 2);
  EXPECT_EQ(neighbour_in_tree(6, 0, 1), 1);
  EXPECT_EQ(neighbour_in_tree(6, 1, 1), std::nullopt);
  EXPECT_EQ(neighbour_in_tree(6, 4, 1), 1);
  EXPECT_EQ(neighbour_in_tree(6, 2, 2), std::nullopt);
  EXPECT_EQ(neighbour_in_tree(5, 0, 4), 1);
  EXPECT_EQ(neighbour_in_tree(5, 0, 5), std::nullopt);
  EXPECT_EQ(neighbour_in_tree(7, 4, 2), 1);
  EXPECT_EQ(neighbour_in_tree(7, 3, 1), std::nullopt);
}

}  // namespace
}  // namespace tutti
