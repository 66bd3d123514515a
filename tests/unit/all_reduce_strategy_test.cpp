#include <tutti/strategy/all_reduce_strategy.hpp>

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using testing::usage_error;

AllReduceStrategy from_json(std::string_view text) {
  return all_reduce_strategy_from_json(JsonDocument::parse(text, "run.json").root());
}

std::string json_error(std::string_view text) {
  return usage_error([&] { from_json(text); });
}

std::string text_error(std::string_view text) {
  return usage_error([&] { parse_all_reduce_strategy(text); });
}

struct Forms {
  AllReduceStrategy strategy;
  std::string json;
  std::string text;
};

const std::vector<Forms>& every_form() {
  static const std::vector<Forms> forms = {
      {Auto{}, R"("Auto")", "Auto"},
      {Centralized{}, R"("Centralized")", "Centralized"},
      {Tree{}, R"({"Tree":2})", "Tree:2"},
      {Tree{.arity = 1}, R"({"Tree":1})", "Tree:1"},
      {Tree{.arity = 4}, R"({"Tree":4})", "Tree:4"},
      {Tree{.arity = std::numeric_limits<int>::max()}, R"({"Tree":2147483647})", "Tree:2147483647"},
      {Ring{}, R"("Ring")", "Ring"},
      {SharedSlices{}, R"("SharedSlices")", "SharedSlices"},
      {RecursiveDoubling{}, R"("RecursiveDoubling")", "RecursiveDoubling"},
      {HalvingDoubling{}, R"("HalvingDoubling")", "HalvingDoubling"},
      {Gloo{}, R"("Gloo")", "Gloo"},
  };
  return forms;
}

TEST(AllReduceStrategy, IsTheSameInJsonAndText) {
  for (const auto& [strategy, json, text] : every_form()) {
    EXPECT_EQ(to_json(strategy).dump(), json);
    EXPECT_EQ(to_string(strategy), text);
    EXPECT_TRUE(from_json(json) == strategy) << json;
    EXPECT_TRUE(parse_all_reduce_strategy(text) == strategy) << text;
    EXPECT_TRUE(parse_all_reduce_strategy(json) == strategy) << json;
    EXPECT_NO_THROW(validate(strategy)) << text;
  }
}

TEST(AllReduceStrategy, ListsOneOfEach) {
  std::set<std::size_t> indices;
  for (const AllReduceStrategy& strategy : all_reduce_strategies()) indices.insert(strategy.index());
  EXPECT_EQ(indices.size(), std::variant_size_v<AllReduceStrategy>);
  EXPECT_EQ(all_reduce_strategies().size(), std::variant_size_v<AllReduceStrategy>);
}

TEST(AllReduceStrategy, ComparesTheArity) {
  EXPECT_TRUE(AllReduceStrategy(Tree{2}) == AllReduceStrategy(Tree{}));
  EXPECT_FALSE(AllReduceStrategy(Tree{2}) == AllReduceStrategy(Tree{3}));
}

TEST(AllReduceStrategy, IsATreeOfTwoOnTheCommandLine) {
  EXPECT_TRUE(parse_all_reduce_strategy("Tree") == AllReduceStrategy(Tree{.arity = 2}));
  EXPECT_TRUE(parse_all_reduce_strategy(R"({"Tree": 4})") == AllReduceStrategy(Tree{.arity = 4}));
}

TEST(AllReduceStrategy, RefusesAnArityBelowOne) {
  for (const int arity : {0, -1, std::numeric_limits<int>::min()}) {
    EXPECT_EQ(usage_error([&] { validate(Tree{.arity = arity}); }),
              "the arity of a Tree must be at least 1, found " + std::to_string(arity));
  }
}

constexpr const char* kAllowedJson =
    R"("Auto", "Centralized", {"Tree": 2}, "Ring", "SharedSlices", "RecursiveDoubling", "HalvingDoubling" or "Gloo")";
constexpr const char* kAllowedText =
    "Auto, Centralized, Tree:2, Ring, SharedSlices, RecursiveDoubling, HalvingDoubling or Gloo";

TEST(AllReduceStrategy, NamesThePlaceOfAWrongDocument) {
  const std::string expected = std::string("expected an all-reduce strategy: ") + kAllowedJson;
  EXPECT_EQ(json_error("\"ring\""), "run.json:1:1: " + expected + "; found \"ring\", did you mean \"Ring\"?");
  EXPECT_EQ(json_error("\"tree\""), "run.json:1:1: " + expected + "; found \"tree\", did you mean {\"Tree\": 2}?");
  EXPECT_EQ(json_error("\"Butterfly\""), "run.json:1:1: " + expected + ", found \"Butterfly\"");
  EXPECT_EQ(json_error("\"\""), "run.json:1:1: " + expected + ", found \"\"");
  EXPECT_EQ(json_error("2"), "run.json:1:1: " + expected + ", found 2");
  EXPECT_EQ(json_error("null"), "run.json:1:1: " + expected + ", found null");
  EXPECT_EQ(json_error("[\"Ring\"]"), "run.json:1:1: " + expected + ", found an array of 1");
  EXPECT_EQ(json_error("{}"), "run.json:1:1: " + expected + ", found an empty object");
}

TEST(AllReduceStrategy, NamesThePathOfAWrongDocument) {
  const JsonValue root = JsonDocument::parse("{\"aggregation\":\n  {\"algorithm\": {\"Tree\": 0}}}", "run.json").root();
  EXPECT_EQ(usage_error([&] { all_reduce_strategy_from_json(root.at("aggregation").at("algorithm")); }),
            "run.json:2:26: aggregation.algorithm.Tree: expected a whole number of at least 1, found 0");
}

TEST(AllReduceStrategy, RefusesAWrongTree) {
  EXPECT_EQ(json_error("\"Tree\""), "run.json:1:1: expected {\"Tree\": 2}, a tree with its arity, found \"Tree\"");
  EXPECT_EQ(json_error("{\"Tree\": 0}"), "run.json:1:10: Tree: expected a whole number of at least 1, found 0");
  EXPECT_EQ(json_error("{\"Tree\": -2}"), "run.json:1:10: Tree: expected a whole number of at least 1, found -2");
  EXPECT_EQ(json_error("{\"Tree\": 2.5}"), "run.json:1:10: Tree: expected a whole number of at least 1, found 2.5");
  EXPECT_EQ(json_error("{\"Tree\": \"2\"}"), "run.json:1:10: Tree: expected a whole number of at least 1, found \"2\"");
  EXPECT_EQ(json_error("{\"Tree\": {}}"),
            "run.json:1:10: Tree: expected a whole number of at least 1, found an empty object");
  EXPECT_EQ(json_error("{\"Tree\": 2147483648}"),
            "run.json:1:10: Tree: expected a whole number of at most 2147483647, found 2147483648");
  EXPECT_EQ(json_error("{\"Tree\": 2, \"x\": 1}"), "run.json:1:13: unknown key \"x\"; known is \"Tree\"");
  EXPECT_EQ(json_error("{\"x\": 1, \"Tree\": 2}"), "run.json:1:2: unknown key \"x\"; known is \"Tree\"");
  EXPECT_EQ(json_error("{\"tree\": 2}"), "run.json:1:2: unknown key \"tree\"; did you mean \"Tree\"?");
  EXPECT_EQ(json_error("{\"Ring\": 2}"),
            "run.json:1:1: Ring stands alone: expected \"Ring\", found an object with the key \"Ring\"");
  EXPECT_EQ(json_error("{\"ring\": 2}"),
            "run.json:1:1: Ring stands alone: expected \"Ring\", found an object with the key \"ring\"");
}

TEST(AllReduceStrategy, RefusesWrongText) {
  EXPECT_EQ(text_error("ring"),
            std::string("'ring' is no all-reduce strategy; expected ") + kAllowedText + "; did you mean Ring?");
  EXPECT_EQ(text_error("tree:4"),
            std::string("'tree:4' is no all-reduce strategy; expected ") + kAllowedText + "; did you mean Tree?");
  EXPECT_EQ(text_error("halving_doubling"), std::string("'halving_doubling' is no all-reduce strategy; expected ") +
                                                kAllowedText + "; did you mean HalvingDoubling?");
  EXPECT_EQ(text_error("Butterfly"), std::string("'Butterfly' is no all-reduce strategy; expected ") + kAllowedText);
  EXPECT_EQ(text_error(""), std::string("'' is no all-reduce strategy; expected ") + kAllowedText);
  EXPECT_EQ(text_error("Ring:2"), "Ring stands alone: expected 'Ring', found 'Ring:2'");
  EXPECT_EQ(text_error("Tree:0"), "the arity of a Tree must be at least 1, found 0");
  EXPECT_EQ(text_error("Tree:-3"), "the arity of a Tree must be at least 1, found -3");
  for (const std::string text :
       {"Tree:", "Tree:x", "Tree:2.5", "Tree: 2", "Tree:2 ", "Tree:+2", "Tree:2:3", "Tree:2147483648"}) {
    EXPECT_EQ(text_error(text),
              "the arity of a Tree must be a whole number of at least 1, as in Tree:2; found '" + text + "'");
  }
  EXPECT_EQ(text_error(R"({"Tree": 0})"),
            "all-reduce strategy:1:10: Tree: expected a whole number of at least 1, found 0");
  EXPECT_THAT(text_error(R"({"Tree": 2)"), HasSubstr("expected a comma or '}'"));
}

}  // namespace
}  // namespace tutti
