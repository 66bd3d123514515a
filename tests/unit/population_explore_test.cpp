#include <tutti/coordinate/explore.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/json.hpp>

namespace tutti {
namespace {

using search::Categorical;
using search::Float;
using search::Int;
using testing::usage_error;

// Every kind, every scale, and one that is there at times.
SearchSpace many_dimensions() {
  return {{{"f.linear", Float{-2, 3}},
           {"f.log", Float{1e-5, 10, Scale::log}},
           {"f.reverse", Float{0.5, 0.999, Scale::reverse_log}},
           {"f.narrow", Float{1, std::nextafter(1, 2)}},
           {"i.linear", Int{-3, 4}},
           {"i.log", Int{1, 100'000, Scale::log}},
           {"i.reverse", Int{1, 100, Scale::reverse_log}},
           {"i.two", Int{0, 1}},
           {"c", Categorical{{"\"sgd\"", "\"adam\"", "{\"name\":\"own\"}", "7"}}},
           {"when.sgd", Float{0, 1}, search::Condition{"c", {"\"sgd\""}}},
           {"when.adam", Int{1, 9}, search::Condition{"c", {"\"adam\"", "7"}}},
           {"when.nested", Float{0, 1}, search::Condition{"when.adam", {"1", "2", "3", "4", "5"}}}}};
}

std::vector<strategy::ExploreStrategy> all_ways() {
  return {strategy::Perturbation{.factor = 0.2},
          strategy::Perturbation{.factor = 1},
          strategy::Perturbation{.factor = 0.2, .resample = 0.5},
          strategy::Resample{},
          strategy::Noise{.sigma = 0.1},
          strategy::Noise{.sigma = 1000},
          strategy::Noise{.sigma = 0.01, .resample = 1}};
}

TEST(Explore, KeepsEveryValueInItsRangeAndOfItsKind) {
  const SearchSpace space = many_dimensions();
  validate(space);
  for (const strategy::ExploreStrategy& how : all_ways()) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      RandomStream draws({seed});
      HyperParameters values = draw_values(space, draws);
      for (int generation = 0; generation < 50; ++generation) {
        ASSERT_EQ(why_not_in(space, values).value_or(""), "") << "seed " << seed << ", way " << how.index();
        values = explore(space, how, values, draws);
      }
    }
  }
}

TEST(Explore, DrawsEvenlyAlongTheScale) {
  const SearchSpace space{{{"linear", Float{-1, 1}},
                           {"log", Float{1e-4, 1, Scale::log}},
                           {"reverse", Float{1e-4, 1, Scale::reverse_log}},
                           {"whole", Int{1, 4}},
                           {"kind", Categorical{{"1", "2", "3", "4"}}}}};
  constexpr int kDraws = 4000;
  std::map<std::string, std::array<int, 4>> quarters;
  RandomStream draws({5});
  for (int i = 0; i < kDraws; ++i) {
    const HyperParameters values = draw_values(space, draws);
    const auto add = [&](const char* path, double share) { ++quarters[path][static_cast<std::size_t>(share * 4)]; };
    add("linear", (number_in(values, "linear") + 1) / 2);
    add("log", 1 + std::log10(number_in(values, "log")) / 4);
    add("reverse", 1 - (1 + std::log10(1e-4 + 1 - number_in(values, "reverse")) / 4));
    add("whole", static_cast<double>(integer_in(values, "whole") - 1) / 4);
    add("kind", static_cast<double>(integer_in(values, "kind") - 1) / 4);
  }
  for (const auto& [path, counts] : quarters) {
    for (const int count : counts) EXPECT_NEAR(count, kDraws / 4, 150) << path;
  }
}

// A scale says where values are drawn; the factor is one of the value itself.
TEST(Explore, PerturbsByTheFactorOnEveryScale) {
  for (const Scale scale : {Scale::linear, Scale::log, Scale::reverse_log}) {
    const SearchSpace space{{{"wide", Float{1e-6, 1e6, scale}}, {"narrow", Float{1, 3, scale}}}};
    RandomStream draws({1});
    double least = 1e9;
    double most = 0;
    for (int i = 0; i < 500; ++i) {
      const HyperParameters next =
          explore(space, strategy::Perturbation{.factor = 0.2}, {{"wide", "10"}, {"narrow", "2.75"}}, draws);
      least = std::min(least, number_in(next, "wide"));
      most = std::max(most, number_in(next, "wide"));
      EXPECT_GE(number_in(next, "narrow"), 2.75 * 0.8);
      EXPECT_LE(number_in(next, "narrow"), 3);
    }
    EXPECT_GE(least, 8);
    EXPECT_LE(most, 12);
    EXPECT_LT(least, 8.1);
    EXPECT_GT(most, 11.9);
  }
}

// JSON's objects have no order: a parent may stand after its children, and what stands right is drawn as it stands.
TEST(Explore, DrawsAParentBeforeItsChildrenWhereverItStands) {
  const SearchSpace space = many_dimensions();
  SearchSpace turned = space;
  std::ranges::reverse(turned.dimensions);
  validate(turned);
  const auto paths_of = [](const std::vector<const SearchDimension*>& order) {
    std::vector<std::string> paths;
    for (const SearchDimension* its : order) paths.push_back(its->path);
    return paths;
  };
  const std::vector<std::string> unchanged = paths_of(in_order(space));
  for (std::size_t i = 0; i < unchanged.size(); ++i) EXPECT_EQ(unchanged[i], space.dimensions[i].path);
  EXPECT_EQ(paths_of(in_order(turned)),
            (std::vector<std::string>{"c", "when.adam", "when.nested", "when.sgd", "i.two", "i.reverse", "i.log",
                                      "i.linear", "f.narrow", "f.reverse", "f.log", "f.linear"}));
  std::set<std::size_t> sizes;
  RandomStream draws({3});
  HyperParameters values = draw_values(turned, draws);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(why_not_in(turned, values).value_or(""), "");
    sizes.insert(values.size());
    values = explore(turned, strategy::Perturbation{.resample = 0.3}, values, draws);
  }
  EXPECT_EQ(sizes, (std::set<std::size_t>{9, 10, 11}));
}

TEST(Explore, MovesSmallWholeNumbersInTheLongRun) {
  const SearchSpace space{{{"layers", Int{1, 8}}}};
  for (const strategy::ExploreStrategy& how : all_ways()) {
    RandomStream draws({2});
    HyperParameters values = {{"layers", "2"}};
    std::set<std::int64_t> seen;
    for (int i = 0; i < 400; ++i) {
      values = explore(space, how, values, draws);
      seen.insert(integer_in(values, "layers"));
    }
    EXPECT_GE(seen.size(), 3U) << how.index();
  }
}

TEST(Explore, MovesCategoriesToANeighbour) {
  const SearchSpace space{{{"c", Categorical{{"\"a\"", "\"b\"", "\"c\"", "\"d\""}}}}};
  const std::map<std::string, std::set<std::string>> beside = {
      {"a", {"b"}}, {"b", {"a", "c"}}, {"c", {"b", "d"}}, {"d", {"c"}}};
  for (const auto& [from, expected] : beside) {
    std::set<std::string> seen;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      RandomStream draws({seed});
      seen.insert(text_in(explore(space, strategy::Perturbation{}, {{"c", "\"" + from + "\""}}, draws), "c"));
    }
    EXPECT_EQ(seen, expected) << from;
  }
}

TEST(Explore, DrawsWhatHasComeToBeThereAndDropsWhatIsNot) {
  const SearchSpace space{{{"c", Categorical{{"\"sgd\"", "\"adam\""}}},
                           {"momentum", Float{0.5, 0.9}, search::Condition{"c", {"\"sgd\""}}}}};
  RandomStream draws({0});
  const HyperParameters adam = explore(space, strategy::Perturbation{}, {{"c", "\"sgd\""}, {"momentum", "0.7"}}, draws);
  EXPECT_EQ(adam, (HyperParameters{{"c", "\"adam\""}}));
  const HyperParameters sgd = explore(space, strategy::Perturbation{}, adam, draws);
  EXPECT_EQ(text_in(sgd, "c"), "sgd");
  EXPECT_EQ(why_not_in(space, sgd), std::nullopt);
}

TEST(Explore, RefusesValuesThatAreNotOfTheSpace) {
  const SearchSpace space{{{"a", Int{1, 3}}}};
  RandomStream draws({0});
  const auto why = [&](const HyperParameters& values) {
    return usage_error([&] { (void)explore(space, strategy::Resample{}, values, draws); });
  };
  EXPECT_EQ(why({}), "a is missing");
  EXPECT_EQ(why({{"a", "4"}}), R"(a: 4 is not in the search space, {"int":[1,3]})");
  EXPECT_EQ(why({{"a", "2.5"}}), R"(a: 2.5 is not in the search space, {"int":[1,3]})");
  EXPECT_EQ(why({{"a", "2"}, {"b", "1"}}), "b is not searched");
}

// --- the space itself ---

SearchSpace read_space(const std::string& text) {
  return search_space_from_json(JsonDocument::parse(text, "s").root());
}

TEST(SearchSpace, IsTheSameAfterItWasWritten) {
  const SearchSpace space = many_dimensions();
  const SearchSpace again = read_space(to_json(space).dump());
  EXPECT_EQ(again, space);
}

// As a program writes them that sorts its keys.
TEST(SearchSpace, KnowsAConditionOnWhatStandsLater) {
  const SearchSpace space =
      read_space(R"({"optimizer.momentum": {"conditional": {"float": [0.5, 0.99]}, "when": {"optimizer.name": "sgd"}},
                     "optimizer.name": {"categorical": ["sgd", "adam"]}})");
  ASSERT_EQ(space.dimensions.size(), 2U);
  EXPECT_EQ(space.dimensions[0].path, "optimizer.momentum");
  EXPECT_EQ(in_order(space)[0]->path, "optimizer.name");
  EXPECT_EQ(read_space(to_json(space).dump()), space);
}

TEST(SearchSpace, RefusesWhatWasPutTogetherWrong) {
  const search::Condition asks_a{"a", {"1"}};
  const search::Condition asks_b{"b", {"1"}};
  const auto why = [](const SearchSpace& space) { return usage_error([&] { validate(space); }); };
  EXPECT_EQ(why({{{"a", Int{0, 1}}, {"a", Int{0, 1}}}}), "the search space: a: it is there twice");
  EXPECT_EQ(why({{{"a", Int{0, 1}, asks_b}}}),
            "the search space: a: \"when\" asks for b, and no dimension has that path");
  EXPECT_EQ(why({{{"a", Int{0, 1}, asks_b}, {"b", Int{0, 1}, asks_a}}}),
            "the search space: a: its condition goes in a circle: a asks for b, which asks for a");
  EXPECT_EQ(why({{{"a", Int{0, 1}, asks_b}, {"b", Categorical{{"1", "no JSON"}}}}}),
            "the search space: b: this is no JSON: no JSON");
}

TEST(SearchSpace, RefusesByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({})", "s:1:1: expected what to search"},
      {R"({"a": {"float": [1, 1]}})", "a: the range from 1 to 1 is empty"},
      {R"({"a": {"float": [2, 1]}})", "a: the range from 2 to 1 is empty"},
      {R"({"a": {"int": [5, 4]}})", "a: the range from 5 to 4 is empty"},
      {R"({"a": {"float": [0, 1], "scale": "log"}})", "a: a log scale begins above 0, and the range begins with 0"},
      {R"({"a": {"float": [-1, 1], "scale": "reverse_log"}})", "a: a reverse_log scale begins above 0"},
      {R"({"a": {"int": [0, 9], "scale": "log"}})", "a: a log scale begins above 0"},
      {R"({"a": {"float": [1e-200, 1e200], "scale": "log"}})", "a: the range is too wide for a log scale"},
      {R"({"a": {"float": [1e308, 1.7e308], "scale": "reverse_log"}})", "a: the range is too wide for a reverse_log"},
      {R"({"a": {"float": [0, 1], "scale": "lug"}})", "log"},
      {R"({"a": {"float": [0, 1, 2]}})", "a.float: expected the two ends of a range"},
      {R"({"a": {"float": [0, 1], "int": [0, 1]}})", "a.int: there is \"float\", too"},
      {R"({"a": {"flot": [0, 1]}})", "did you mean \"float\"?"},
      {R"({"a": {"int": [0, 1.5]}})", "a.int[1]: expected a whole number"},
      {R"({"a": {"categorical": ["x"]}})", "a: expected at least two values, found 1"},
      {R"({"a": {"categorical": [1, 1.0]}})", "is there twice"},
      {R"({"a": {"categorical": [1, 2], "scale": "log"}})", "scale"},
      {R"({"a": {"conditional": {"int": [0, 1]}, "when": {"b": 1}}})", "a: \"when\" asks for b, and no dimension has"},
      {R"({"a": {"conditional": {"int": [0, 1]}, "when": {"a": 1}}})",
       "a: its condition goes in a circle: a asks for a"},
      {R"({"d": {"conditional": {"int": [0, 1]}, "when": {"a": 1}}, "a": {"conditional": {"int": [0, 1]}, "when": {"b": 1}},
           "b": {"conditional": {"int": [0, 1]}, "when": {"c": 1}}, "c": {"conditional": {"int": [0, 1]}, "when": {"a": 1}}})",
       "a: its condition goes in a circle: a asks for b, which asks for c, which asks for a"},
      {R"({"b": {"float": [0, 1]}, "a": {"conditional": {"int": [0, 1]}, "when": {"b": 1}}})", "numbers with a point"},
      {R"({"b": {"categorical": [1, 2]}, "a": {"conditional": {"int": [0, 1]}, "when": {"b": [1, 3]}}})",
       "b never is 3; it is one of 1, 2"},
      {R"({"b": {"int": [1, 2]}, "a": {"conditional": {"int": [0, 1]}, "when": {"b": 3}}})", "b never is 3"},
      {R"({"a": {"conditional": {"int": [0, 1]}}})", "when"},
      {R"({"b": {"int": [0, 1]}, "a": {"conditional": {"conditional": {"int": [0, 1]}, "when": {"b": 1}}, "when": {"b": 1}}})",
       "a.conditional.conditional: a condition within a condition; expected a range"},
      {R"({"a": 3})", "a: expected a range"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_NE(usage_error([&] { (void)read_space(text); }).find(expected), std::string::npos)
        << text << ": " << usage_error([&] { (void)read_space(text); });
}

}  // namespace
}  // namespace tutti
