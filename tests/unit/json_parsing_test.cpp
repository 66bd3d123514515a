#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/sample.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/json.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::usage_error;

JsonValue parse(std::string_view text) { return JsonDocument::parse(text, "run.json").root(); }

std::string parse_error(std::string_view text) {
  return usage_error([&] { JsonDocument::parse(text, "run.json"); });
}

TEST(JsonParsing, AllowsComments) {
  EXPECT_EQ(parse("/* a */ [1, // b\n 2 /* c **/ ] // d").size(), 2u);
  EXPECT_EQ(parse("[\"// no comment\"]").element(0).string(), "// no comment");
  EXPECT_EQ(parse("[1/**/,2//\r]").raw().dump(), "[1,2]");
  EXPECT_EQ(parse_error("[1] /* open\n"), "run.json:1:5: invalid comment; missing closing '*/'");
  EXPECT_EQ(parse_error("/*/"), "run.json:1:1: invalid comment; missing closing '*/'");
  EXPECT_EQ(parse_error("[1 / 2]"), "run.json:1:4: invalid comment; expecting '/' or '*' after '/'");
}

TEST(JsonParsing, SaysWhatWasExpected) {
  EXPECT_EQ(parse_error("{\n  \"a\": 1\n  \"b\": 2}"), "run.json:3:3: expected a comma or '}', found a string");
  EXPECT_EQ(parse_error("{\"a\" 1}"), "run.json:1:6: expected a colon, found '1'");
  EXPECT_EQ(parse_error("{\"a\":}"), "run.json:1:6: expected a value, found '}'");
  EXPECT_EQ(parse_error("{\"a\"::1}"), "run.json:1:6: expected a value, found ':'");
  EXPECT_EQ(parse_error("{\"a\": 1,}"), "run.json:1:9: expected a key in double quotes, found '}'");
  EXPECT_EQ(parse_error("{\"a\": 1 , /**/\n"),
            "run.json:2:1: expected a key in double quotes, found the end of the document");
  EXPECT_EQ(parse_error("{lr: 1}"), "run.json:1:2: expected a key in double quotes, found 'lr'");
  EXPECT_EQ(parse_error("{'lr': 1}"), "run.json:1:2: expected a key in double quotes, found ''lr''");
  EXPECT_EQ(parse_error("[1, 2,]"), "run.json:1:7: expected a value, found ']'");
  EXPECT_EQ(parse_error("[1,, 2]"), "run.json:1:4: expected a value, found ','");
  EXPECT_EQ(parse_error("[1, 2}"), "run.json:1:6: expected a comma or ']', found '}'");
  EXPECT_EQ(parse_error("[1, 2"), "run.json:1:6: expected a comma or ']', found the end of the document");
  EXPECT_EQ(parse_error("[,]"), "run.json:1:2: expected a value, found ','");
  EXPECT_EQ(parse_error("[,"), "run.json:1:2: expected a value, found ','");
  EXPECT_EQ(parse_error("{} {}"), "run.json:1:4: expected the end of the document, found '{'");
  EXPECT_EQ(parse_error("{},"), "run.json:1:3: expected the end of the document, found ','");
  EXPECT_EQ(parse_error("[é]"), "run.json:1:2: expected a value, found 'é'");
  EXPECT_EQ(parse_error("[\x01]"), "run.json:1:2: expected a value, found '\\u0001'");
}

TEST(JsonParsing, OffersTheWordThatWasMeant) {
  EXPECT_EQ(parse_error("True"), "run.json:1:1: expected a value, found 'True'; did you mean true?");
  EXPECT_EQ(parse_error("[nul]"), "run.json:1:2: expected a value, found 'nul'; did you mean null?");
  EXPECT_EQ(parse_error("NaN"), "run.json:1:1: expected a value, found 'NaN'");
  EXPECT_EQ(parse_error("Infinity"), "run.json:1:1: expected a value, found 'Infinity'");
}

TEST(JsonParsing, RefusesNumbersThatJsonDoesNotWriteSo) {
  for (const std::string text : {"-", "--1", "-Infinity"})
    EXPECT_EQ(parse_error(text), "run.json:1:1: invalid number; expected digit after '-'") << text;
  for (const std::string text : {"1.", "1.e3"})
    EXPECT_EQ(parse_error(text), "run.json:1:1: invalid number; expected digit after '.'") << text;
  EXPECT_EQ(parse_error("1e"), "run.json:1:1: invalid number; expected '+', '-', or digit after exponent");
  EXPECT_EQ(parse_error("1e+"), "run.json:1:1: invalid number; expected digit after exponent sign");
  for (const std::string text : {"+1", ".5"})
    EXPECT_EQ(parse_error(text), "run.json:1:1: expected a value, found '" + text + "'");
  // The number ends where no number goes on.
  for (const std::string text : {"01", "0x10", "1_000", "00", "1-2", "1a"}) {
    EXPECT_EQ(parse_error("[" + text + "]"), "run.json:1:3: expected a comma or ']', found '" + text.substr(1) + "'");
  }
  EXPECT_EQ(parse_error("1.2.3"), "run.json:1:4: expected the end of the document, found '.3'");
  EXPECT_EQ(parse_error("1-"), "run.json:1:2: invalid number; expected digit after '-'");
}

TEST(JsonParsing, RefusesNumbersThatDoNotFit) {
  for (const std::string text : {"1e400", "-1e400", "1e-400", "1e99999999999999999999"}) {
    EXPECT_EQ(parse_error("{\"a\": " + text + "}"),
              "run.json:1:7: expected a number that 64-bit floating point can hold, found '" + text + "'");
  }
}

TEST(JsonParsing, RefusesAKeyGivenTwice) {
  EXPECT_EQ(parse_error("{\"a\": 1,\n \"b\": {\"a\": 1},\n   \"a\": 2}"),
            "run.json:3:4: the key \"a\" is given twice, first at run.json:1:2");
  EXPECT_EQ(parse_error(R"({"a": {"x": 1, "\u0078": 2}})"),
            "run.json:1:16: the key \"x\" is given twice, first at run.json:1:8");
}

TEST(JsonParsing, ReadsEveryEscape) {
  EXPECT_EQ(parse(R"("\"\\\/\b\f\n\r\t")").string(), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(parse(R"("\u0041\u00e9\u20AC\ud83d\ude00")").string(), "Aé€😀");
  EXPECT_EQ(parse(R"("a\u0000b")").string(), "a\0b"s);
}

TEST(JsonParsing, NamesThePlaceOfAWrongString) {
  EXPECT_EQ(parse_error("{\"a\": \"open\n}"), "run.json:1:7: this string is not closed on its line");
  EXPECT_EQ(parse_error("[\"open\r\n]"), "run.json:1:2: this string is not closed on its line");
  EXPECT_EQ(parse_error("{\n\"a}"), "run.json:2:1: this string is not closed on its line");
  for (const char* text : {"\"", "\"a\\", "\"\\u"})
    EXPECT_EQ(parse_error(text), "run.json:1:1: this string is not closed on its line") << text;
  EXPECT_EQ(parse_error("[\"a\tb\"]"),
            "run.json:1:2: invalid string: control character U+0009 (HT) must be escaped to \\u0009 or \\t");
  EXPECT_EQ(parse_error("[\"a\x1b\"]"),
            "run.json:1:2: invalid string: control character U+001B (ESC) must be escaped to \\u001B");
  for (const char* text : {"\"a\\x\"", "\"a\\U0041\"", "\"a\\'\""})
    EXPECT_EQ(parse_error(text), "run.json:1:1: invalid string: forbidden character after backslash") << text;
  for (const char* text : {"\"\\u12\"", "\"\\u12g4\"", "\"\\u+123\"", "\"\\u 123\"", "\"\\u-123\""})
    EXPECT_EQ(parse_error(text), "run.json:1:1: invalid string: '\\u' must be followed by 4 hex digits") << text;
  for (const char* text : {R"("\ud83d")", R"("\ud83dx")", R"("\ud83d\n")", R"("\ud83d\u0041")", R"("\ude00")"})
    EXPECT_THAT(parse_error(text), StartsWith("run.json:1:1: invalid string: surrogate U+D")) << text;
}

TEST(JsonParsing, RefusesWhatIsNoText) {
  EXPECT_EQ(parse_error(""), "run.json:1:1: expected a value, found the end of the document");
  EXPECT_EQ(parse_error(" // nothing\n"), "run.json:2:1: expected a value, found the end of the document");
  EXPECT_EQ(parse_error("\xef\xbb\xbf{}"),
            "run.json:1:1: the text begins with a byte order mark; save it as UTF-8 without one");
  EXPECT_EQ(parse_error("{\0}\0"s), "run.json:1:2: a NUL byte: this is no UTF-8 text");  // UTF-16
  EXPECT_EQ(parse_error("{\n\0}"s), "run.json:2:1: a NUL byte: this is no UTF-8 text");
  EXPECT_EQ(parse_error("[\"a\0b\"]"s), "run.json:1:4: a NUL byte: this is no UTF-8 text");
  EXPECT_EQ(parse_error("1 // \0 2"s), "run.json:1:6: a NUL byte: this is no UTF-8 text");
}

TEST(JsonParsing, RefusesWhatIsNotUtf8) {
  EXPECT_EQ(parse_error("[\"é\", \"\xe9\"]"), "run.json:1:7: invalid string: ill-formed UTF-8 byte");
  EXPECT_EQ(parse_error("[\"é\", \xe9]"), "run.json:1:7: expected a value, found '\ufffd'");
  EXPECT_EQ(parse_error("\xef{}"), "run.json:1:1: invalid BOM; must be 0xEF 0xBB 0xBF if given");
  // Stray and missing continuations, overlong forms, surrogates, beyond U+10FFFF.
  for (const char* text : {"\"\x80\"", "\"\xc3\"", "\"\xc0\xaf\"", "\"\xe0\x80\xaf\"", "\"\xf0\x80\x80\xaf\"",
                           "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf8\x88\x80\x80\x80\""})
    EXPECT_EQ(parse_error(text), "run.json:1:1: invalid string: ill-formed UTF-8 byte") << text;
  EXPECT_EQ(parse("\"\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\"").string(), "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80");
}

TEST(JsonParsing, RefusesToNestTooDeep) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  JsonValue value = parse(nested(kMaxJsonDepth));
  for (int depth = 1; depth < kMaxJsonDepth; ++depth) value = value.element(0);
  EXPECT_EQ(value.size(), 0u);
  EXPECT_EQ(parse_error(nested(kMaxJsonDepth + 1)),
            "run.json:1:513: expected at most 512 levels of nesting, found more");
  EXPECT_THAT(parse_error(std::string(10'000'000, '[')), HasSubstr("levels of nesting"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(parse_error(objects), HasSubstr("levels of nesting"));
}

TEST(JsonParsing, TakesLargeDocuments) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += fmt::format("\"key {}\": [{}],\n", i, i);
  text += "\"last\": 0}";
  const JsonValue root = parse(text);
  EXPECT_EQ(root.keys().size(), 100'001u);
  EXPECT_EQ(root.at("last").error("here").what(), "run.json:100001:9: last: here"s);
}

class JsonFiles : public ::testing::Test {
 protected:
  JsonFiles() : folder_(std::filesystem::path(::testing::TempDir()) / fmt::format("tutti_json_test_{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~JsonFiles() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string_view name) const { return (folder_ / name).string(); }
  std::string write(std::string_view name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return path(name);
  }

  std::filesystem::path folder_;
};

TEST_F(JsonFiles, AreNamedInErrors) {
  const std::string path = write("run.json", "{\n  \"rows\": 0}");
  EXPECT_EQ(usage_error([&] { JsonDocument::read_file(path).root().at("rows").integer({.min = 1}); }),
            path + ":2:11: rows: expected a whole number of at least 1, found 0");
}

TEST_F(JsonFiles, MayBeLargerThanOneBlock) {
  const std::string path = write("large.json", '"' + std::string(1'000'000, 'x') + '"');
  EXPECT_EQ(JsonDocument::read_file(path).root().string().size(), 1'000'000u);
}

TEST_F(JsonFiles, SayWhyTheyCannotBeRead) {
  const auto message = [](const std::string& path) { return usage_error([&] { JsonDocument::read_file(path); }); };
  EXPECT_EQ(message(path("none.json")), "cannot read " + path("none.json") + ": there is no such file");
  EXPECT_EQ(message(folder_.string()), "cannot read " + folder_.string() + ": it is a directory");
  EXPECT_EQ(message(path("none/none.json")), "cannot read " + path("none/none.json") + ": there is no such file");
  EXPECT_EQ(message(""), "cannot read : there is no such file");
  const std::string file = write("file", "1");
  EXPECT_EQ(message(file + "/run.json"), "cannot read " + file + "/run.json: there is no such file");
  EXPECT_EQ(message(path(std::string(1000, 'n'))),
            "cannot read " + path(std::string(1000, 'n')) + ": File name too long");
  EXPECT_EQ(message("/proc/self/mem"), "cannot read /proc/self/mem: Input/output error");
  EXPECT_EQ(message(write("empty.json", "")),
            path("empty.json") + ":1:1: expected a value, found the end of the document");
}

// Reads all of a value in every way; only UsageErrors may come out.
void read_everything(const JsonValue& value) {
  usage_error([&] { value.integer({.min = 1, .max = 9}); });
  usage_error([&] { value.number({.min = 0, .min_excluded = true}); });
  usage_error([&] { value.boolean(); });
  usage_error([&] { value.one_of({"sgd", "adam"}); });
  usage_error([&] { value.refuse_other_keys({"seed", "data"}); });
  usage_error([&] { value.element(1); });
  usage_error([&] { value.at("nodes"); });
  if (value.is_object()) {
    for (const std::string& key : value.keys()) read_everything(value.at(key));
  }
  if (value.is_array()) {
    for (const JsonValue& element : value.elements()) read_everything(element);
  }
}

std::string mutated(std::string text, RandomStream& random) {
  static const std::vector<std::string> kPieces = {
      "{",    "}",    "[",    "]",  ",",  ":",    "\"",   "\\",       "/",
      "*",    "//",   "/*",   "*/", "\n", "\r",   "\t",   " ",        "-",
      "+",    ".",    "e",    "0",  "1",  "9",    "1e5",  "\\u",      "\\ud83d\\ude00",
      "d800", "true", "null", "é",  "😀",  "\x80", "\xff", "\"a\": 1", "99999999999999999999"};
  for (std::uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const std::size_t where = random.below(text.size() + 1);
    switch (random.below(5)) {
      case 0: text.insert(where, kPieces[random.below(kPieces.size())]); break;
      case 1: text.erase(where, random.below(4)); break;
      case 2: text.resize(where); break;
      case 3: text.insert(where, text.substr(random.below(text.size() + 1), random.below(20))); break;
      default:
        if (where < text.size()) text[where] = static_cast<char>(random.below(256));
    }
  }
  return text;
}

// What tutti refuses on purpose and nlohmann-json takes.
bool stricter_here(const std::string& message) {
  for (const char* reason : {"is given twice", "64-bit floating point", "byte order mark", "NUL byte"}) {
    if (message.find(reason) != std::string::npos) return true;
  }
  return false;
}

TEST(JsonProperty, MutatedDocumentsAreReadAsNlohmannReadsThemOrRefused) {
  const std::string original = R"({ "seed": 7, // why not
  "data": {"source": "fashion_mnist", "batch_size": 128, "rate": -0.5e-3},
  "graph": {"inputs": {"image": [1, 28, 28]}, /* one é */
    "nodes": [{"id": "flat", "op": "fl\"at\u00e9ten", "inputs": ["image"]}, {}, [], null, true, false]},
  "output": "runs/\ud83d\ude00first" })";
  int taken = 0;
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 20'000; seed += testing::kEveryWhereSanitized) {
    RandomStream random({seed});
    const std::string text = mutated(original, random);
    SCOPED_TRACE(fmt::format("seed {}:\n{}", seed, text));
    const auto reference = nlohmann::ordered_json::parse(text, nullptr, false, true);
    std::optional<JsonValue> root;
    const std::string message = usage_error([&] { root = JsonDocument::parse(text).root(); });
    if (root) {
      ++taken;
      ASSERT_FALSE(reference.is_discarded());
      ASSERT_EQ(root->raw(), reference);
      read_everything(*root);
    } else {
      ++refused;
      ASSERT_TRUE(reference.is_discarded() || stricter_here(message)) << message;
      ASSERT_TRUE(message.starts_with("JSON:")) << message;
      ASSERT_EQ(message.find('\n'), std::string::npos) << message;
      ASSERT_EQ(message.find("json.exception"), std::string::npos) << message;
    }
  }
  EXPECT_GT(taken, 1000 / testing::kEveryWhereSanitized);
  EXPECT_GT(refused, 1000 / testing::kEveryWhereSanitized);
}

}  // namespace
}  // namespace tutti
