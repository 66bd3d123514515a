#include <tutti/base/chunk.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

static_assert(chunk(10, 4, 1) == Slice{.first = 3, .count = 3});
static_assert(chunk(10, 4, 2) == Slice{.first = 6, .count = 2});
static_assert(chunk(10, 4, 3).end() == 10);
static_assert(chunk(2, 3, 2).empty());

TEST(Chunk, CutsAnyLengthIntoContiguousChunksThatDifferByAtMostOne) {
  std::vector<std::size_t> lengths = {1000, 4096, 1'000'003, std::numeric_limits<std::size_t>::max()};
  for (std::size_t length = 0; length <= 100; ++length) lengths.push_back(length);
  for (const std::size_t length : lengths) {
    for (int chunks = 1; chunks <= 70; ++chunks) {
      SCOPED_TRACE(::testing::Message() << length << " in " << chunks);
      std::size_t next = 0;
      std::size_t longest = 0;
      std::size_t shortest = length;
      std::size_t before = std::numeric_limits<std::size_t>::max();
      for (int index = 0; index < chunks; ++index) {
        const Slice slice = chunk(length, chunks, index);
        ASSERT_EQ(slice.first, next);    // contiguous and disjoint
        ASSERT_LE(slice.count, before);  // the longer ones first
        ASSERT_EQ(slice.empty(), slice.count == 0);
        next = slice.end();
        before = slice.count;
        longest = std::max(longest, slice.count);
        shortest = std::min(shortest, slice.count);
      }
      ASSERT_EQ(next, length);  // covering
      ASSERT_LE(longest - shortest, 1u);
    }
  }
}

}  // namespace
}  // namespace tutti
