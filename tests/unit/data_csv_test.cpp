// CSV files: what their fields are, and what is wrong on which line.
#include <tutti/data/csv.hpp>

#include <gtest/gtest.h>
#include <tutti/base/random.hpp>

#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"

namespace tutti {
namespace {

using Row = std::vector<std::string>;

std::vector<Row> rows_of(const std::string& text, CsvOptions options = {.header = false}) {
  CsvReader csv(text, "t.csv", options);
  std::vector<Row> rows;
  while (csv.next()) {
    Row& row = rows.emplace_back();
    for (std::size_t i = 0; i < csv.column_count(); ++i) row.emplace_back(csv.field(i));
  }
  return rows;
}

TEST(CsvReader, ReadsFieldsAsTheyAre) {
  const std::vector<Row> two{{"a", "b"}, {"c", "d"}};
  for (const char* text : {"a,b\nc,d\n", "a,b\nc,d", "a,b\r\nc,d\r\n", "a,b\r\nc,d\r", "\na,b\n\n\r\nc,d\n\n",
                           " a , b\nc,d ", "\"a\",\"b\"\n\"c\" , \"d\"\r\n"})
    EXPECT_EQ(rows_of(text), two) << text;
  EXPECT_EQ(rows_of("a,\n,b\n,"), (std::vector<Row>{{"a", ""}, {"", "b"}, {"", ""}}));
  EXPECT_EQ(rows_of("a;b\tc\n", {.header = false, .separator = ';'}), (std::vector<Row>{{"a", "b\tc"}}));
  EXPECT_EQ(rows_of("a b\t c\n", {.header = false, .separator = '\t'}), (std::vector<Row>{{"a b", "c"}}));
}

TEST(CsvReader, ReadsWhatIsInQuotes) {
  EXPECT_EQ(rows_of("\"a,b\",\"say \"\"no\"\"\"\n\"two\r\nlines\",\"\"\n\"\"\"\",\" x \"\n"),
            (std::vector<Row>{{"a,b", "say \"no\""}, {"two\r\nlines", ""}, {"\"", " x "}}));
}

TEST(CsvReader, KnowsColumnsByTheirNames) {
  CsvReader csv("length,petal width,length\n1,2.5,3\n", "t.csv");
  EXPECT_EQ(csv.column("petal width"), 1u);
  ASSERT_TRUE(csv.next());
  EXPECT_EQ(csv.number(1), 2.5);
  EXPECT_EQ(csv.line(), 2);
  EXPECT_FALSE(csv.next());
  EXPECT_EQ(testing::usage_error([&] { (void)csv.column("petal with"); }),
            "t.csv: there is no column 'petal with'; did you mean 'petal width'?");
  EXPECT_EQ(testing::usage_error([&] { (void)csv.column("length"); }), "t.csv: there are several columns 'length'");
}

TEST(CsvReader, NamesTheLineOfWhatIsWrong) {
  const auto refused = [](const std::string& text, CsvOptions options = {}) {
    return testing::usage_error([&] {
      CsvReader csv(text, "t.csv", options);
      while (csv.next()) (void)csv.number(1);
    });
  };
  EXPECT_EQ(refused("a,b\n1,2\n1\n"), "t.csv:3: expected 2 columns, found 1");
  EXPECT_EQ(refused("a,b\r\n\r\n1,2,3\r\n"), "t.csv:3: expected 2 columns, found 3");
  EXPECT_EQ(refused("a,b\n1,abc\n"), "t.csv:2: column 'b': expected a number, found 'abc'");
  EXPECT_EQ(refused("1,2\n1,abc\n", {.header = false}), "t.csv:2: column 1: expected a number, found 'abc'");
  EXPECT_EQ(refused("a,b\n\"x\ny\",1\n2,\n"), "t.csv:4: column 'b': expected a number, found ''");
  EXPECT_EQ(refused("a,b\n1,2\n1,\"2\n3\n"), "t.csv:3: a field in quotes has no end");
  EXPECT_EQ(refused("a,b\n1,\"2\"3\n"), "t.csv:2: expected ',' after a field in quotes, found '3'");
  EXPECT_EQ(refused("1,2\n3,4\n"), "t.csv:1: expected the names of the columns, found numbers; is there no header?");
  EXPECT_EQ(refused(""), "t.csv: the file is empty");
  EXPECT_EQ(refused("\n\n"), "t.csv: the file is empty");
}

TEST(CsvReader, TakesNumbersThatAreFinite) {
  for (const char* text : {"0", "-1", "+1", "1.5", ".5", "5.", "1e3", "-1E-3", "00012", "1e308"})
    EXPECT_TRUE(CsvReader::number_in(text).has_value()) << text;
  for (const char* text :
       {"", "+", "-", "+-1", "--1", "1,5", "0x10", "nan", "inf", "-inf", "1e999", "1 2", "one", "1e"})
    EXPECT_FALSE(CsvReader::number_in(text).has_value()) << text;
}

TEST(CsvReader, PassesTheMarkOfUtf8Over) {
  const testing::ScratchFolder folder;
  CsvReader csv(folder.write("t.csv", "\xef\xbb\xbf\"a\",b\n1,2\n"));
  EXPECT_EQ(csv.column_names(), (Row{"a", "b"}));
  EXPECT_EQ(testing::usage_error([&] { CsvReader nothing(folder.path() / "none.csv"); }),
            "cannot read " + (folder.path() / "none.csv").string());
  EXPECT_EQ(testing::usage_error([&] { CsvReader nothing(folder.path()); }), "cannot read " + folder.path().string());
}

// Whatever fields hold: written as RFC 4180 says, they are read as they were.
TEST(CsvReader, ReadsBackWhatWasWritten) {
  RandomStream draws({11});
  const std::string letters = "ab\",\n\r\t; ";
  for (int round = 0; round < 500; ++round) {
    const std::size_t width = 1 + draws.below(4);
    std::vector<Row> rows(1 + draws.below(4), Row(width));
    std::string text;
    for (Row& row : rows) {
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t left = draws.below(6); left > 0; --left) row[i] += letters[draws.below(letters.size())];
        std::string quoted;
        for (const char letter : row[i]) quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
        text += (i > 0 ? ",\"" : "\"") + quoted + '"';
      }
      text += draws.below(2) == 0 ? "\n" : "\r\n";
    }
    EXPECT_EQ(rows_of(text), rows) << "round " << round << ": " << text;
  }
}

}  // namespace
}  // namespace tutti
