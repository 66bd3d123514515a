#include <tutti/strategy/compression.hpp>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using testing::usage_error;

Compression from_json(std::string_view text) {
  return compression_from_json(JsonDocument::parse(text, "run.json").root());
}

std::string json_error(std::string_view text) {
  return usage_error([&] { from_json(text); });
}

std::string text_error(std::string_view text) {
  return usage_error([&] { parse_compression(text); });
}

struct Forms {
  Compression compression;
  std::string json;
  std::string text;
};

TEST(Compression, IsTheSameInJsonAndText) {
  const std::vector<Forms> forms = {
      {NoCompression{}, R"("NoCompression")", "NoCompression"},
      {TopK{}, R"({"TopK":0.01})", "TopK:0.01"},
      {TopK{.fraction = 1}, R"({"TopK":1.0})", "TopK:1"},
      {TopK{.fraction = 1e-6}, R"({"TopK":1e-06})", "TopK:1e-06"},
      {Float16{}, R"("Float16")", "Float16"},
      {BFloat16{}, R"("BFloat16")", "BFloat16"},
      {PowerSgd{}, R"({"PowerSgd":2})", "PowerSgd:2"},
      {PowerSgd{.rank = std::numeric_limits<int>::max()}, R"({"PowerSgd":2147483647})", "PowerSgd:2147483647"},
  };
  for (const auto& [compression, json, text] : forms) {
    EXPECT_EQ(to_json(compression).dump(), json);
    EXPECT_EQ(to_string(compression), text);
    EXPECT_TRUE(from_json(json) == compression) << json;
    EXPECT_TRUE(parse_compression(text) == compression) << text;
    EXPECT_TRUE(parse_compression(json) == compression) << json;
    EXPECT_NO_THROW(validate(compression)) << text;
  }
}

TEST(Compression, IsNoneByDefault) { EXPECT_TRUE(Compression{} == Compression(NoCompression{})); }

TEST(Compression, ListsOneOfEach) {
  std::set<std::size_t> indices;
  for (const Compression& compression : compressions()) indices.insert(compression.index());
  EXPECT_EQ(indices.size(), std::variant_size_v<Compression>);
  EXPECT_EQ(compressions().size(), std::variant_size_v<Compression>);
}

TEST(Compression, ComparesTheNumbers) {
  EXPECT_FALSE(Compression(TopK{0.1}) == Compression(TopK{0.2}));
  EXPECT_FALSE(Compression(PowerSgd{1}) == Compression(PowerSgd{2}));
}

TEST(Compression, HasItsDefaultOnTheCommandLine) {
  EXPECT_TRUE(parse_compression("TopK") == Compression(TopK{.fraction = 0.01}));
  EXPECT_TRUE(parse_compression("PowerSgd") == Compression(PowerSgd{.rank = 2}));
  EXPECT_TRUE(parse_compression("TopK:1e-3") == Compression(TopK{.fraction = 0.001}));
}

TEST(Compression, RefusesAFractionThatIsNoneAndARankBelowOne) {
  EXPECT_EQ(usage_error([] { validate(TopK{0}); }), "the fraction of a TopK must be above 0 and at most 1, found 0");
  EXPECT_EQ(usage_error([] { validate(TopK{1.5}); }),
            "the fraction of a TopK must be above 0 and at most 1, found 1.5");
  EXPECT_EQ(usage_error([] { validate(TopK{-0.1}); }),
            "the fraction of a TopK must be above 0 and at most 1, found -0.1");
  EXPECT_EQ(usage_error([] { validate(TopK{std::numeric_limits<double>::quiet_NaN()}); }),
            "the fraction of a TopK must be above 0 and at most 1, found nan");
  for (const int rank : {0, -1, std::numeric_limits<int>::min()}) {
    EXPECT_EQ(usage_error([&] { validate(PowerSgd{.rank = rank}); }),
              "the rank of a PowerSgd must be at least 1, found " + std::to_string(rank));
  }
}

constexpr const char* kAllowedJson = R"("NoCompression", {"TopK": 0.01}, "Float16", "BFloat16" or {"PowerSgd": 2})";
constexpr const char* kAllowedText = "NoCompression, TopK:0.01, Float16, BFloat16 or PowerSgd:2";

TEST(Compression, NamesThePlaceOfAWrongDocument) {
  const std::string expected = std::string("expected a compression: ") + kAllowedJson;
  EXPECT_EQ(json_error("\"float16\""), "run.json:1:1: " + expected + "; found \"float16\", did you mean \"Float16\"?");
  EXPECT_EQ(json_error("\"topk\""), "run.json:1:1: " + expected + "; found \"topk\", did you mean {\"TopK\": 0.01}?");
  EXPECT_EQ(json_error("\"Huffman\""), "run.json:1:1: " + expected + ", found \"Huffman\"");
  EXPECT_EQ(json_error("2"), "run.json:1:1: " + expected + ", found 2");
  EXPECT_EQ(json_error("{}"), "run.json:1:1: " + expected + ", found an empty object");
  EXPECT_EQ(json_error("\"TopK\""), "run.json:1:1: expected {\"TopK\": 0.01}, with its number, found \"TopK\"");
  EXPECT_EQ(json_error("{\"TopK\": 0}"), "run.json:1:10: TopK: expected a number above 0 and at most 1, found 0");
  EXPECT_EQ(json_error("{\"TopK\": 0.5, \"PowerSgd\": 2}"),
            "run.json:1:15: unknown key \"PowerSgd\"; known is \"TopK\"");
  EXPECT_EQ(json_error("{\"PowerSgd\": 0}"), "run.json:1:14: PowerSgd: expected a whole number of at least 1, found 0");
  EXPECT_EQ(json_error("{\"PowerSgd\": 2147483648}"),
            "run.json:1:14: PowerSgd: expected a whole number of at most 2147483647, found 2147483648");
  EXPECT_EQ(json_error("{\"powersgd\": 2}"), "run.json:1:2: unknown key \"powersgd\"; did you mean \"PowerSgd\"?");
  EXPECT_EQ(json_error("{\"Float16\": 2}"),
            "run.json:1:1: Float16 stands alone: expected \"Float16\", found an object with the key \"Float16\"");
}

TEST(Compression, RefusesWrongText) {
  EXPECT_EQ(text_error("bfloat16"),
            std::string("'bfloat16' is no compression; expected ") + kAllowedText + "; did you mean BFloat16?");
  EXPECT_EQ(text_error("power_sgd:3"),
            std::string("'power_sgd:3' is no compression; expected ") + kAllowedText + "; did you mean PowerSgd?");
  EXPECT_EQ(text_error("Huffman"), std::string("'Huffman' is no compression; expected ") + kAllowedText);
  EXPECT_EQ(text_error(""), std::string("'' is no compression; expected ") + kAllowedText);
  EXPECT_EQ(text_error("Float16:2"), "Float16 stands alone: expected 'Float16', found 'Float16:2'");
  EXPECT_EQ(text_error("TopK:2"), "the fraction of a TopK must be above 0 and at most 1, found 2");
  EXPECT_EQ(text_error("TopK:nan"), "the fraction of a TopK must be above 0 and at most 1, found nan");
  EXPECT_EQ(text_error("PowerSgd:0"), "the rank of a PowerSgd must be at least 1, found 0");
  for (const std::string text : {"TopK:", "TopK:x", "TopK:0.1:2", "TopK: 0.1"}) {
    EXPECT_EQ(text_error(text),
              "the fraction of a TopK must be a number above 0 and at most 1, as in TopK:0.01; found '" + text + "'");
  }
  for (const std::string text : {"PowerSgd:", "PowerSgd:2.5", "PowerSgd:2147483648"}) {
    EXPECT_EQ(text_error(text),
              "the rank of a PowerSgd must be a whole number of at least 1, as in PowerSgd:2; found '" + text + "'");
  }
  EXPECT_THAT(text_error(R"({"TopK": 0.1)"), HasSubstr("expected a comma or '}'"));
}

}  // namespace
}  // namespace tutti
