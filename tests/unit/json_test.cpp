#include <tutti/base/json.hpp>

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using namespace std::string_literals;
using ::testing::ElementsAre;
using testing::usage_error;

JsonValue parse(std::string_view text) { return JsonDocument::parse(text, "run.json").root(); }

std::string place_of(const JsonValue& value) {
  const std::string message = value.error("").what();
  return message.substr(0, message.find(": "));
}

TEST(JsonValue, ReadsEveryKind) {
  const JsonValue root =
      parse(R"({"a": true, "b": false, "c": null, "d": -12, "e": 2.5e-1, "f": "text", "g": [], "h": {}})");
  EXPECT_TRUE(root.is_object());
  EXPECT_TRUE(root.at("a").boolean());
  EXPECT_FALSE(root.at("b").boolean());
  EXPECT_TRUE(root.at("b").is_boolean());
  EXPECT_TRUE(root.at("c").is_null());
  EXPECT_EQ(root.at("d").integer(), -12);
  EXPECT_EQ(root.at("d").number(), -12.0);
  EXPECT_EQ(root.at("e").number(), 0.25);
  EXPECT_TRUE(root.at("e").is_number());
  EXPECT_EQ(root.at("f").string(), "text");
  EXPECT_TRUE(root.at("f").is_string());
  EXPECT_TRUE(root.at("g").is_array());
  EXPECT_EQ(root.at("g").size(), 0u);
  EXPECT_TRUE(root.at("h").keys().empty());
  EXPECT_FALSE(root.at("h").is_array());
}

TEST(JsonValue, KeepsTheOrderOfKeys) {
  const JsonValue root = parse(R"({"z": 1, "a": 2, "m": {"y": 1, "b": 2}})");
  EXPECT_THAT(root.keys(), ElementsAre("z", "a", "m"));
  EXPECT_EQ(root.raw().dump(), R"({"z":1,"a":2,"m":{"y":1,"b":2}})");
  EXPECT_EQ(root.at("m").raw().dump(), R"({"y":1,"b":2})");
}

TEST(JsonValue, OutlivesItsDocument) {
  std::optional<JsonValue> value;
  {
    const JsonDocument document = JsonDocument::parse(R"({"a": ["x", "y"]})", "run.json");
    value = document.root().at("a");
  }
  EXPECT_EQ(value->element(1).string(), "y");
  EXPECT_EQ(value->expected("more").what(), "run.json:1:7: a: expected more, found an array of 2"s);
}

TEST(JsonValue, FindsOnlyWhatIsThere) {
  const JsonValue root = parse(R"({"a": null})");
  EXPECT_TRUE(root.find("a").has_value());
  EXPECT_FALSE(root.find("b").has_value());
}

TEST(JsonValue, KnowsItsPath) {
  const JsonValue root = parse(R"({"graph": {"nodes": [{"id": "flat"}, {"id": "hidden", "units": [[1, 2], [3]]}]}})");
  EXPECT_EQ(root.path(), "");
  const JsonValue node = root.at("graph").at("nodes").element(1);
  EXPECT_EQ(node.path(), "graph.nodes[1]");
  EXPECT_EQ(node.at("units").element(0).element(1).path(), "graph.nodes[1].units[0][1]");
  EXPECT_EQ(root.at("graph").at("nodes").elements()[1].at("id").path(), "graph.nodes[1].id");
  EXPECT_EQ(parse("[[1]]").element(0).element(0).path(), "[0][0]");
}

TEST(JsonValue, GoesByAnotherName) {
  const JsonValue root = parse(R"({"graph": {"nodes": [{"units": [1, 2]}]}})");
  const JsonValue node = root.at("graph").at("nodes").element(0).named("hidden");
  EXPECT_EQ(node.path(), "graph.hidden");
  EXPECT_EQ(node.at("units").path(), "graph.hidden.units");
  EXPECT_EQ(node.at("units").element(1).named("outputs").path(), "graph.hidden.outputs");
  EXPECT_EQ(root.at("graph").named("net").at("nodes").path(), "net.nodes");
  EXPECT_EQ(root.named("root").path(), "root");
  EXPECT_EQ(parse(R"({"a.b": {"c.d": 1}})").at("a.b").at("c.d").named("e").path(), "a.b.e");
  EXPECT_EQ(node.at("units").expected("more").what(),
            "run.json:1:32: graph.hidden.units: expected more, found an array of 2"s);
}

TEST(JsonValue, NamesThePlaceOfAWrongType) {
  const JsonValue root = parse("{\n  \"data\": {\n    \"rows\": \"many\"\n  }\n}");
  const JsonValue rows = root.at("data").at("rows");
  EXPECT_EQ(usage_error([&] { rows.integer(); }), "run.json:3:13: data.rows: expected a whole number, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.number(); }), "run.json:3:13: data.rows: expected a number, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.boolean(); }), "run.json:3:13: data.rows: expected true or false, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.elements(); }), "run.json:3:13: data.rows: expected an array, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.at("x"); }), "run.json:3:13: data.rows: expected an object, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.find("x"); }), "run.json:3:13: data.rows: expected an object, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.keys(); }), "run.json:3:13: data.rows: expected an object, found \"many\"");
  EXPECT_EQ(usage_error([&] { rows.refuse_other_keys({}); }),
            "run.json:3:13: data.rows: expected an object, found \"many\"");
  EXPECT_EQ(usage_error([&] { root.string(); }), "run.json:1:1: expected a string, found an object");
}

TEST(JsonValue, ShowsWhatItFoundInFewWords) {
  const auto found = [](std::string_view text) {
    const std::string message = parse(text).expected("x").what();
    return message.substr(message.find("found ") + 6);
  };
  EXPECT_EQ(found("0"), "0");
  EXPECT_EQ(found("-1.50E+3"), "-1.50E+3");
  EXPECT_EQ(found("true"), "true");
  EXPECT_EQ(found("null"), "null");
  EXPECT_EQ(found(R"("abc")"), R"("abc")");
  EXPECT_EQ(found(R"("")"), R"("")");
  EXPECT_EQ(found(R"("a\"b\\c\nd\te\u0000")"), R"("a\"b\\c\nd\te\u0000")");
  EXPECT_EQ(found("{}"), "an empty object");
  EXPECT_EQ(found(R"({"a": 1})"), "an object");
  EXPECT_EQ(found("[]"), "an empty array");
  EXPECT_EQ(found("[1, 2, 3]"), "an array of 3");
  EXPECT_EQ(found('"' + std::string(40, 'x') + '"'), '"' + std::string(40, 'x') + '"');
  EXPECT_EQ(found('"' + std::string(1000, 'x') + '"'), '"' + std::string(40, 'x') + "...\"");
  std::string accents;
  for (int i = 0; i < 40; ++i) accents += "é";
  EXPECT_EQ(found('"' + accents + "é\""), '"' + accents + "...\"");  // whole characters
}

TEST(JsonValue, NamesTheRangeOfWholeNumbers) {
  const auto message = [](std::string_view text, IntegerRange range) {
    return usage_error([&] { parse(text).integer(range); });
  };
  EXPECT_EQ(message("0", {.min = 1}), "run.json:1:1: expected a whole number of at least 1, found 0");
  EXPECT_EQ(message("65", {.min = 1, .max = 64}), "run.json:1:1: expected a whole number from 1 to 64, found 65");
  EXPECT_EQ(message("9", {.max = 8}), "run.json:1:1: expected a whole number of at most 8, found 9");
  EXPECT_EQ(message("9", {.min = 8, .max = 8}), "run.json:1:1: expected the whole number 8, found 9");
  EXPECT_EQ(message("\"1\"", {.min = 1}), "run.json:1:1: expected a whole number of at least 1, found \"1\"");
  for (const char* text : {"1", "64", "33"}) EXPECT_EQ(message(text, {.min = 1, .max = 64}), "(no error)") << text;
}

TEST(JsonValue, TakesOnlyWhatIsWrittenAsAWholeNumber) {
  for (const std::string text : {"3.0", "3.5", "1e3", "1E0", "-0.0"}) {
    EXPECT_EQ(usage_error([&] { parse(text).integer(); }), "run.json:1:1: expected a whole number, found " + text);
  }
  EXPECT_EQ(parse("-0").integer(), 0);
  EXPECT_EQ(parse("9223372036854775807").integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse("-9223372036854775808").integer(), std::numeric_limits<std::int64_t>::min());
}

TEST(JsonValue, NamesTheLimitThatALongWholeNumberPasses) {
  EXPECT_EQ(usage_error([] { parse("9223372036854775808").integer({.min = 1}); }),
            "run.json:1:1: expected a whole number of at most 9223372036854775807, found 9223372036854775808");
  EXPECT_EQ(usage_error([] { parse("18446744073709551616").integer({.min = 1, .max = 64}); }),
            "run.json:1:1: expected a whole number of at most 64, found 18446744073709551616");
  EXPECT_EQ(usage_error([] { parse("-9223372036854775809").integer(); }),
            "run.json:1:1: expected a whole number of at least -9223372036854775808, found -9223372036854775809");
  EXPECT_EQ(
      usage_error([] { parse(std::string(100, '1')).integer(); }),
      "run.json:1:1: expected a whole number of at most 9223372036854775807, found " + std::string(40, '1') + "...");
}

TEST(JsonValue, ReadsWholeNumbersOf64BitsWithoutSign) {
  EXPECT_EQ(parse("0").unsigned_integer(), 0u);
  EXPECT_EQ(parse("18446744073709551615").unsigned_integer(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(parse("18446744073709551615").number(), 18446744073709551615.0);
  for (const std::string text : {"-1", "1.0", "1e3", "18446744073709551616", "\"7\"", "null"}) {
    EXPECT_EQ(usage_error([&] { parse(text).unsigned_integer(); }),
              "run.json:1:1: expected a whole number from 0 to 18446744073709551615, found " + text);
  }
}

TEST(JsonValue, NamesTheRangeOfNumbers) {
  const auto message = [](std::string_view text, NumberRange range) {
    const std::string whole = usage_error([&] { parse(text).number(range); });
    return whole.substr(whole.find(": ") + 2);
  };
  EXPECT_EQ(message("\"\"", {}), "expected a number, found \"\"");
  EXPECT_EQ(message("0", {.min = 0, .max = 1, .min_excluded = true}),
            "expected a number above 0 and at most 1, found 0");
  EXPECT_EQ(message("1", {.min = 0, .max = 1, .max_excluded = true}),
            "expected a number of at least 0 and below 1, found 1");
  EXPECT_EQ(message("1.0", {.min = 0, .max = 1, .min_excluded = true, .max_excluded = true}),
            "expected a number above 0 and below 1, found 1.0");
  EXPECT_EQ(message("1.5", {.min = 0, .max = 1}), "expected a number from 0 to 1, found 1.5");
  EXPECT_EQ(message("-1e-3", {.min = 0}), "expected a number of at least 0, found -1e-3");
  EXPECT_EQ(message("0.0", {.min = 0, .min_excluded = true}), "expected a number above 0, found 0.0");
  EXPECT_EQ(message("2", {.max = 0.25}), "expected a number of at most 0.25, found 2");
  EXPECT_EQ(message("0.25", {.max = 0.25, .max_excluded = true}), "expected a number below 0.25, found 0.25");
  EXPECT_EQ(message("2", {.min = 1, .max = 1}), "expected the number 1, found 2");
  EXPECT_EQ(parse("0").number({.min = 0, .max = 1}), 0);
  EXPECT_EQ(parse("1").number({.min = 0, .max = 1}), 1);
}

TEST(JsonValue, ReadsNumbersToTheLastBit) {
  EXPECT_EQ(parse("0.1").number(), 0.1);
  EXPECT_EQ(parse("1.7976931348623157e308").number(), std::numeric_limits<double>::max());
  EXPECT_EQ(parse("5e-324").number(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parse("12345678901234567890").number(), 12345678901234567890.0);
  EXPECT_TRUE(std::signbit(parse("-0").number()));
}

TEST(JsonValue, OffersTheNearestOfSeveralNames) {
  const std::vector<std::string> names = {"sgd", "adam", "lamb"};
  EXPECT_EQ(parse("\"adam\"").one_of(names), "adam");
  EXPECT_EQ(usage_error([&] { parse("\"sdg\"").one_of(names); }),
            R"(run.json:1:1: expected one of "sgd", "adam" or "lamb", found "sdg"; did you mean "sgd"?)");
  EXPECT_EQ(usage_error([&] { parse("\"newton\"").one_of(names); }),
            R"(run.json:1:1: expected one of "sgd", "adam" or "lamb", found "newton")");
  EXPECT_EQ(usage_error([&] {
              parse("7").one_of({"sgd", "adam"});
            }),
            R"(run.json:1:1: expected "sgd" or "adam", found 7)");
  EXPECT_EQ(usage_error([&] { parse("7").one_of({"sgd"}); }), R"(run.json:1:1: expected "sgd", found 7)");
}

TEST(JsonValue, NamesAMissingKey) {
  const JsonValue root = parse("{\"data\":\n {\"batchsize\": 1}}");
  EXPECT_EQ(usage_error([&] { root.at("graph"); }), "run.json:1:1: missing key \"graph\"");
  EXPECT_EQ(usage_error([&] { root.at("data").at("source"); }), "run.json:2:2: data: missing key \"source\"");
  EXPECT_EQ(usage_error([&] { root.at("data").at("batch_size"); }),
            "run.json:2:2: data: missing key \"batch_size\"; is \"batchsize\" meant to be it?");
}

TEST(JsonValue, RefusesKeysNobodyAskedFor) {
  const JsonValue data = parse("{\"data\": {\"source\": 1,\n  \"batchsize\": 2}}").at("data");
  data.refuse_other_keys({"batchsize", "source", "more"});
  EXPECT_EQ(usage_error([&] {
              data.refuse_other_keys({"source", "batch_size"});
            }),
            "run.json:2:3: data: unknown key \"batchsize\"; did you mean \"batch_size\"?");
  EXPECT_EQ(usage_error([&] {
              data.refuse_other_keys({"source", "rows", "shuffle"});
            }),
            "run.json:2:3: data: unknown key \"batchsize\"; known are \"source\", \"rows\" and \"shuffle\"");
  EXPECT_EQ(usage_error([&] { data.refuse_other_keys({"source"}); }),
            "run.json:2:3: data: unknown key \"batchsize\"; known is \"source\"");
  EXPECT_EQ(usage_error([&] { data.refuse_other_keys({}); }),
            "run.json:1:11: data: unknown key \"source\"; no key is known here");
}

TEST(JsonValue, RefusesAnElementThatIsNotThere) {
  EXPECT_EQ(usage_error([] { parse("[1, 2]").element(2); }),
            "run.json:1:1: expected an array of at least 3, found an array of 2");
}

TEST(JsonValue, StaysOnOneLineWhateverAKeyHolds) {
  const JsonValue value = parse(R"({"a\nb": 1})").at("a\nb");
  EXPECT_EQ(value.expected("a string").what(), R"(run.json:1:10: a\nb: expected a string, found 1)"s);
}

TEST(JsonPlaces, AreExactOnEveryLine) {
  const JsonValue root = parse(
      "// a comment\n"
      "{ \"a\" : 1,\n"
      "\t\"b\":/* one\n two */ -2.5\n"
      ", \"c\": [1,22 ,\n333\n,[ 4 ]],\r\n"
      "  \"ü\": \"ß€😀\", \"d\": true\n"
      "}");
  EXPECT_EQ(place_of(root), "run.json:2:1");
  EXPECT_EQ(place_of(root.at("a")), "run.json:2:9");
  EXPECT_EQ(place_of(root.at("b")), "run.json:4:9");
  EXPECT_EQ(place_of(root.at("c")), "run.json:5:8");
  EXPECT_EQ(place_of(root.at("c").element(0)), "run.json:5:9");
  EXPECT_EQ(place_of(root.at("c").element(1)), "run.json:5:11");
  EXPECT_EQ(place_of(root.at("c").element(2)), "run.json:6:1");
  EXPECT_EQ(place_of(root.at("c").element(3)), "run.json:7:2");
  EXPECT_EQ(place_of(root.at("c").element(3).element(0)), "run.json:7:4");
  EXPECT_EQ(place_of(root.at("ü")), "run.json:8:8");
  EXPECT_EQ(place_of(root.at("d")), "run.json:8:20");
}

// Writes documents, and notes where each value begins by counting what it wrote.
class PlacedDocument {
 public:
  explicit PlacedDocument(std::uint64_t seed) : random_({seed}) {
    blank();
    value(0);
    blank();
  }

  const std::string& text() const { return text_; }
  const std::vector<std::string>& places() const { return places_; }  // values in the order they begin

 private:
  void write(std::string_view text) {
    for (const char byte : text) {
      if (byte == '\n') {
        ++line_;
        column_ = 1;
      } else if ((static_cast<unsigned char>(byte) & 0xc0u) != 0x80u) {
        ++column_;
      }
    }
    text_ += text;
  }

  std::string_view one_of(std::initializer_list<std::string_view> choices) {
    return choices.begin()[random_.below(choices.size())];
  }

  void blank() {
    while (random_.below(3) == 0)
      write(one_of({" ", "\t", "\n", "\r\n", "// note, \"x\": 1]\n", "/**/", "/* {,\n é * / */", "  "}));
  }

  void value(int depth) {
    places_.push_back(fmt::format("run.json:{}:{}", line_, column_));
    const std::uint64_t kind = random_.below(depth < 5 ? 4 : 2);
    if (kind == 0) write(one_of({"0", "-1", "2.5", "3e-2", "12345678901234567890", "true", "false", "null"}));
    if (kind == 1)
      write(one_of({R"("")", R"("a")", R"("é€😀")", R"("\"")", R"("\\")", R"("\u00e9 // \n")", R"("{[,")"}));
    if (kind >= 2) {
      const bool object = kind == 2;
      write(object ? "{" : "[");
      const std::uint64_t count = random_.below(5);
      for (std::uint64_t i = 0; i < count; ++i) {
        blank();
        if (object) {
          write(fmt::format("\"k{}ö\"", i));
          blank();
          write(":");
          blank();
        }
        value(depth + 1);
        blank();
        if (i + 1 < count) write(",");
      }
      if (count == 0) blank();
      write(object ? "}" : "]");
    }
  }

  RandomStream random_;
  std::string text_;
  int line_ = 1;
  int column_ = 1;
  std::vector<std::string> places_;
};

TEST(JsonValue, PlacesErrorsThatHaveNone) {
  const JsonValue value = parse(R"({"a": 3})").at("a");
  const std::string placed = value.placed(UsageError("too many")).what();
  EXPECT_THAT(placed, ::testing::EndsWith(": a: too many"));
  EXPECT_EQ(value.placed(UsageError(placed)).what(), placed);
}

TEST(JsonValue, FilesAreFoundFromTheDocumentsFolderFirst) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("tutti-{}", ::getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "net.pt") << "x";
  std::ofstream(folder / "run.json") << R"({"file": "net.pt", "other": "none.pt"})";
  const JsonValue root = JsonDocument::read_file(folder / "run.json").root();
  EXPECT_EQ(root.at("file").file_path(), folder / "net.pt");
  EXPECT_EQ(root.at("other").file_path(), "none.pt");
  std::filesystem::remove_all(folder);
}

void collect_places(const JsonValue& value, std::vector<std::string>& places) {
  places.push_back(place_of(value));
  if (value.is_object()) {
    for (const std::string& key : value.keys()) collect_places(value.at(key), places);
  }
  if (value.is_array()) {
    for (const JsonValue& element : value.elements()) collect_places(element, places);
  }
}

TEST(JsonPlaces, AreExactInRandomDocuments) {
  std::size_t values = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const PlacedDocument written(seed);
    std::vector<std::string> places;
    collect_places(parse(written.text()), places);
    ASSERT_EQ(places, written.places()) << "seed " << seed << "\n" << written.text();
    values += places.size();
  }
  EXPECT_GT(values, 5000u);
}

}  // namespace
}  // namespace tutti
