#include <tutti/base/checksum.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

std::uint64_t checksum(std::string_view text) {
  Checksum sum;
  sum.add(text);
  return sum.value();
}

std::string some_text(std::size_t length) {
  RandomStream draws({length});
  std::string text;
  while (text.size() < length) text += static_cast<char>(draws());
  return text;
}

TEST(Checksum, IsXxh64) {
  const std::vector<std::pair<std::string_view, std::string_view>> known = {
      {"", "ef46db3751d8e999"},
      {"a", "d24ec4f1a98c6e5b"},
      {"as", "1c330fb2d66be179"},
      {"asd", "631c37ce72a97393"},
      {"asdf", "415872f599cea71e"},
      {"abc", "44bc2cf5ad770999"},
      {"Call me Ishmael. Some years ago--never mind how long precisely-", "02a2e85470d6fd96"},
  };
  for (const auto& [text, expected] : known) EXPECT_EQ(to_hex(checksum(text)), expected) << text;
}

TEST(Checksum, DoesNotDependOnThePieces) {
  RandomStream draws({1});
  for (std::size_t length = 0; length < 200; ++length) {
    const std::string text = some_text(length);
    for (std::size_t cut = 0; cut <= length; ++cut) {
      Checksum sum;
      sum.add(std::string_view(text).substr(0, cut));
      sum.add(std::string_view(text).substr(cut));
      ASSERT_EQ(sum.value(), checksum(text)) << length << " bytes, cut at " << cut;
    }
    Checksum sum;
    for (std::size_t next = 0; next < length;) {
      const std::size_t piece = draws.below(50);
      sum.add(std::string_view(text).substr(next, piece));
      sum.value();  // to ask changes nothing
      next += piece;
    }
    ASSERT_EQ(sum.value(), checksum(text)) << length << " bytes in random pieces";
  }
}

TEST(Checksum, ChangesWithEveryBitAndWithTheLength) {
  for (const std::size_t length : {1, 7, 31, 32, 33, 100}) {
    std::set<std::uint64_t> seen = {checksum(some_text(length))};
    for (std::size_t bit = 0; bit < 8 * length; ++bit) {
      std::string text = some_text(length);
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
      EXPECT_TRUE(seen.insert(checksum(text)).second) << "bit " << bit << " of " << length << " bytes";
    }
  }
  std::set<std::uint64_t> seen;
  for (std::size_t length = 0; length < 100; ++length)
    EXPECT_TRUE(seen.insert(checksum(std::string(length, '\0'))).second) << length << " zeros";
}

TEST(Checksum, ChangesWhereBlocksChangePlaces) {
  const std::string a = some_text(64);
  const std::string b = some_text(65).substr(0, 64);
  EXPECT_NE(checksum(a + b), checksum(b + a));
}

TEST(Checksum, IsWrittenInSixteenDigits) {
  EXPECT_EQ(to_hex(0), "0000000000000000");
  EXPECT_EQ(to_hex(0xabc), "0000000000000abc");
  EXPECT_EQ(to_hex(~std::uint64_t{0}), "ffffffffffffffff");
}

}  // namespace
}  // namespace tutti
