#include "cli/lines.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tutti::cli {
namespace {

std::string split(const std::string& text, std::size_t piece, const std::string& prefix) {
  Lines lines(prefix);
  std::string result;
  for (std::size_t begin = 0; begin < text.size(); begin += piece) lines.add(text.substr(begin, piece), result);
  lines.finish(result);
  return result;
}

TEST(Lines, PutsThePrefixBeforeEachLineHoweverItComes) {
  for (const std::size_t piece : {1, 2, 3, 5, 100}) {
    EXPECT_EQ(split("one\n\nthree\nno end", piece, "[2] "), "[2] one\n[2] \n[2] three\n[2] no end\n") << piece;
    EXPECT_EQ(split("one\n\nthree\n", piece, ""), "one\n\nthree\n") << piece;
    EXPECT_EQ(split("", piece, "[2] "), "") << piece;
  }
}

TEST(Lines, KeepsALineUntilItEnds) {
  Lines lines("> ");
  std::string text;
  lines.add("half a li", text);
  EXPECT_EQ(text, "");
  lines.add("ne\nand", text);
  EXPECT_EQ(text, "> half a line\n");
}

TEST(Lines, PassesLongLinesOnInPieces) {
  const std::string longest(kLongestLine, 'x');
  for (const std::size_t piece : {1000, 65535, 65536, 65537, 200'000}) {
    EXPECT_EQ(split(longest + "\nshort\n", piece, "> "), "> " + longest + "\n> short\n") << piece;
    EXPECT_EQ(split(longest + "y\n", piece, "> "), "> " + longest + "\n> y\n") << piece;
    EXPECT_EQ(split(longest + longest, piece, ""), longest + "\n" + longest + "\n") << piece;
  }
}

}  // namespace
}  // namespace tutti::cli
