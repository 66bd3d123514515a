#include <tutti/sync/slice_plan.hpp>

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using Lengths = std::vector<std::size_t>;

std::size_t elements_of(std::span<const SlicePiece> pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), std::size_t{0},
                         [](std::size_t sum, const SlicePiece& piece) { return sum + piece.slice.count; });
}

TEST(SlicePlan, CutsLongArraysAndKeepsShortOnesWhole) {
  const SlicePlan plan(Lengths{10, 0, SlicePlan::kLongest + 1}, 1);
  EXPECT_THAT(plan.pieces(), ElementsAre(SlicePiece{0, {0, 10}, 0}, SlicePiece{2, {0, SlicePlan::kLongest}, 1},
                                         SlicePiece{2, {SlicePlan::kLongest, 1}, 2}));
}

TEST(SlicePlan, HasEveryElementOnceAndSharesThatDifferByAPieceAtMost) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream draws({seed});
    Lengths lengths(draws.below(20));
    for (std::size_t& length : lengths) length = draws.below(draws.below(3) == 0 ? 100'000 : 100);
    const std::size_t total = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
    const SlicePlan one(lengths, 1);
    for (const int workers : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(workers) + " workers");
      const SlicePlan plan(lengths, workers);
      EXPECT_TRUE(std::ranges::equal(plan.pieces(), one.pieces())) << "pieces depend on the workers";
      Lengths reached(lengths.size());
      std::size_t next = 0;
      for (int worker = 0; worker < workers; ++worker) {
        for (const SlicePiece& piece : plan.share_of(worker)) {
          EXPECT_EQ(piece.index, next++);
          EXPECT_EQ(piece.slice.first, reached[piece.array]);
          EXPECT_LE(piece.slice.count, SlicePlan::kLongest);
          reached[piece.array] += piece.slice.count;
        }
        const std::size_t fair = chunk(total, workers, worker).count;
        const std::size_t its = elements_of(plan.share_of(worker));
        EXPECT_LE(its, fair + SlicePlan::kLongest);
        EXPECT_LE(fair, its + SlicePlan::kLongest);
      }
      EXPECT_EQ(reached, lengths);
    }
  }
}

TEST(SlicePlan, IsForSomebody) { EXPECT_THROW(SlicePlan(Lengths{1}, 0), UsageError); }

}  // namespace
}  // namespace tutti
