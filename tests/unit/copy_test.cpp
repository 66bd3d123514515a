#include <tutti/kernels/copy.hpp>

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(CopyPastCaches, CopiesAllOfItAndNothingElse) {
  constexpr std::size_t kMargin = 200;
  std::vector<unsigned char> source(1000);
  std::iota(source.begin(), source.end(), static_cast<unsigned char>(1));
  for (std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 500}) {
    for (std::size_t to : {0, 1, 7, 16, 63}) {
      for (std::size_t from : {0, 1, 8, 33}) {
        std::vector<unsigned char> destination(bytes + 2 * kMargin, 0xee);
        std::vector<unsigned char> expected = destination;
        copy_past_caches(destination.data() + kMargin + to, source.data() + from, bytes);
        for (std::size_t i = 0; i < bytes; ++i) expected[kMargin + to + i] = source[from + i];
        EXPECT_EQ(destination, expected) << bytes << " bytes to " << to << " from " << from;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
