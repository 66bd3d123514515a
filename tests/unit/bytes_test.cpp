#include <tutti/base/bytes.hpp>

#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using testing::usage_error;

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

TEST(Bytes, ReadsEveryUnit) {
  EXPECT_EQ(parse_bytes("0"), Bytes{0});
  EXPECT_EQ(parse_bytes("1500"), Bytes{1500});
  EXPECT_EQ(parse_bytes("1500B"), Bytes{1500});
  std::uint64_t one = 1;
  for (const std::string letter : {"K", "M", "G", "T"}) {
    one *= 1024;
    EXPECT_EQ(parse_bytes("3" + letter), Bytes{3 * one}) << letter;
    EXPECT_EQ(parse_bytes("3" + letter + "iB"), Bytes{3 * one}) << letter;
    EXPECT_EQ(parse_bytes("3 " + letter + "iB"), Bytes{3 * one}) << letter;
  }
}

TEST(Bytes, WritesTheLargestUnitThatDividesEvenly) {
  EXPECT_EQ(to_string(Bytes{0}), "0 B");
  EXPECT_EQ(to_string(Bytes{1023}), "1023 B");
  EXPECT_EQ(to_string(Bytes{1024}), "1 KiB");
  EXPECT_EQ(to_string(Bytes{1025}), "1025 B");
  EXPECT_EQ(to_string(Bytes{1536}), "1536 B");
  EXPECT_EQ(to_string(Bytes{4u << 20}), "4 MiB");
  EXPECT_EQ(to_string(Bytes{std::uint64_t{5} << 40}), "5 TiB");
  EXPECT_EQ(to_string(Bytes{kMost}), "18446744073709551615 B");
}

TEST(Bytes, ReadsBackWhatItWrites) {
  for (int shift = 0; shift < 64; ++shift) {
    for (const std::uint64_t offset : {-1, 0, 1}) {
      const Bytes bytes{(std::uint64_t{1} << shift) + offset};
      EXPECT_EQ(parse_bytes(to_string(bytes)), bytes) << to_string(bytes);
    }
  }
  EXPECT_EQ(parse_bytes(to_string(Bytes{kMost})), Bytes{kMost});
}

TEST(Bytes, RefusesWhatIsNoCount) {
  for (const char* text :
       {"", " ", "B", "KiB", "-1", "+1", "1.5MiB", "4 bananas", "4MB", "4kib", "0x10", " 4", "4MiB "}) {
    EXPECT_EQ(usage_error([&] { parse_bytes(text); }),
              "'" + std::string(text) + "' is no number of bytes; write for example 1500, 1KiB, 4MiB or 2GiB");
  }
}

TEST(Bytes, RefusesMoreThan64BitsCanCount) {
  EXPECT_EQ(parse_bytes("16777215TiB"), Bytes{std::uint64_t{16777215} << 40});
  for (const char* text : {"18446744073709551616", "16777216TiB", "99999999999999999999999 KiB"}) {
    EXPECT_EQ(usage_error([&] { parse_bytes(text); }), "'" + std::string(text) + "' is more bytes than can be counted");
  }
}

}  // namespace
}  // namespace tutti
