#include "report/population_svg.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::detail {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

bool is_escaped(std::string_view text) {
  for (std::size_t at = 0; (at = text.find_first_of("<>&", at)) != std::string_view::npos; ++at) {
    const std::string_view rest = text.substr(at);
    const auto begins = [&](std::string_view name) { return rest.starts_with(name); };
    if (!begins("&lt;") && !begins("&gt;") && !begins("&amp;") && !begins("&quot;")) return false;
  }
  return true;
}

// Empty where the text is well-formed XML, as far as pictures need it; otherwise what is wrong.
std::string why_not_xml(std::string_view text) {
  static const std::regex kTag(
      R"re(<(?:(/[a-z]+)>|([a-z]+)((?: [a-zA-Z0-9_-]+="(?:[^<>&"]|&(?:lt|gt|amp|quot);)*")*)(/?)>))re");
  std::vector<std::string> open;
  std::size_t roots = 0;
  while (!text.empty()) {
    const std::size_t tag = std::min(text.find('<'), text.size());
    const std::string_view between = text.substr(0, tag);
    if (!is_escaped(between)) return "text: " + std::string(between);
    for (const char letter : between) {
      if (static_cast<unsigned char>(letter) < 0x20 && letter != '\n') return "a control character";
    }
    text.remove_prefix(tag);
    if (text.empty()) break;
    const std::size_t end = text.find('>');
    if (end == std::string_view::npos) return "a tag without an end";
    std::string its(text.substr(0, end + 1));
    // Paths are too long for std::regex, which recurses.
    if (const std::size_t data = its.find(" d=\""); data != std::string::npos) {
      const std::size_t past = its.find_first_not_of("MLHVh0123456789-. ", data + 4);
      if (past == std::string::npos || its[past] != '"') return "a path's data: " + its;
      its.erase(data, past + 1 - data);
    }
    std::smatch found;
    if (!std::regex_match(its, found, kTag)) return "tag: " + its;
    if (found[1].matched) {
      if (open.empty() || "/" + open.back() != found[1].str()) return "closes what is not open: " + its;
      open.pop_back();
    } else {
      if (open.empty() && roots++ > 0) return "a second root";
      const std::string attributes = found[3].str();
      std::set<std::string> names;
      static const std::regex kName(R"( ([a-zA-Z0-9_-]+)=")");
      for (std::sregex_iterator name(attributes.begin(), attributes.end(), kName), none; name != none; ++name) {
        if (!names.insert((*name)[1]).second) return "an attribute twice: " + its;
      }
      if (found[4].length() == 0) open.push_back(found[2]);
    }
    text.remove_prefix(end + 1);
  }
  return open.empty() ? (roots == 1 ? "" : "no root") : "not closed: " + open.back();
}

std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator match(text.begin(), text.end(), expression), none; match != none; ++match)
    found.push_back((*match)[match->size() - 1]);
  return found;
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// What stands between the two.
std::string part_of(const std::string& text, std::string_view begin, std::string_view end) {
  const std::size_t first = text.find(begin);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find(end, first) - first);
}

std::string dots_of(const std::string& svg) { return part_of(svg, R"(<g class="dots">)", "</g>"); }

// The data of all bold lines, one for each panel.
std::vector<std::string> bold_lines(const std::string& svg) {
  std::vector<std::string> lines;
  for (std::size_t at = svg.find(R"(class="ancestors")"); at != std::string::npos;
       at = svg.find(R"(class="ancestors")", at + 1)) {
    const std::size_t begin = svg.find(" d=\"", at) + 4;
    lines.push_back(svg.substr(begin, svg.find('"', begin) - begin));
  }
  return lines;
}

PopulationRecord record(std::int64_t generation, std::int64_t member, double score) {
  return {.at = {.generation = generation, .member = member},
          .score = score,
          .hyper_parameters = {{"lr", member % 2 == 0 ? "0.001" : "1.0"}}};
}

// Members that keep in step, and never take over; a higher number is better.
PopulationHistory history_of(std::int64_t generations, std::int64_t members) {
  PopulationHistory history{.score_name = "accuracy"};
  for (std::int64_t generation = 1; generation <= generations; ++generation) {
    for (std::int64_t member = 0; member < members; ++member)
      history.records.push_back(record(generation, member, static_cast<double>(generation * members + member)));
  }
  return history;
}

TEST(WhyNotXml, FindsWhatIsWrong) {
  EXPECT_EQ(why_not_xml("<svg><g a=\"b&lt;\"/>x &amp;</svg>\n"), "");
  for (const char* wrong : {"", "<svg>", "<svg></g>", "<svg><g></svg>", "<svg/><svg/>", "<svg a=b/>", "<svg>&</svg>",
                            "<svg>a > b</svg>", "<svg a=\"<\"/>", "<svg a=\"1\" a=\"2\"/>", "<svg>\x01</svg>"})
    EXPECT_NE(why_not_xml(wrong), "") << wrong;
}

TEST(PopulationSvg, SaysWhereNothingIsThereYet) {
  const std::string svg = population_svg({});
  EXPECT_EQ(why_not_xml(svg), "");
  EXPECT_THAT(svg, HasSubstr("No member has been evaluated yet."));
  EXPECT_THAT(svg, Not(HasSubstr("generation</text>")));
}

TEST(PopulationSvg, ShowsASingleRecordAsPoints) {
  const std::string svg = population_svg(history_of(1, 1));
  EXPECT_EQ(why_not_xml(svg), "");
  EXPECT_EQ(count(dots_of(svg), "<circle"), 1u);
  EXPECT_THAT(bold_lines(svg), Each(MatchesRegex("M520 [0-9]+h0"))) << "in the middle";
  EXPECT_THAT(bold_lines(svg), SizeIs(3));
  EXPECT_THAT(svg, HasSubstr("Best accuracy: 1, member 0 in generation 1"));
}

TEST(PopulationSvg, HasADotForEachMemberAndGeneration) {
  for (const std::int64_t generations : {1, 2, 3, 7, 200}) {
    for (const std::int64_t members : {1, 2, 5, 8}) {
      const std::string svg = population_svg(history_of(generations, members));
      EXPECT_EQ(why_not_xml(svg), "");
      const std::string dots = dots_of(svg);
      std::set<std::pair<std::string, std::string>> places;
      const std::vector<std::string> x = all_matches(dots, R"re(cx="([0-9.]+)")re");
      const std::vector<std::string> y = all_matches(dots, R"re(cy="([0-9.]+)")re");
      ASSERT_EQ(x.size(), y.size());
      for (std::size_t i = 0; i < x.size(); ++i) places.emplace(x[i], y[i]);
      EXPECT_THAT(places, SizeIs(static_cast<std::size_t>(generations * members)));
      EXPECT_THAT(svg, Not(HasSubstr("Drawn:")));
    }
  }
}

TEST(PopulationSvg, HasABoldLineThatFollowsTheParents) {
  PopulationHistory history = history_of(4, 3);
  // Member 2 is the best at the end, and goes back to member 0 by way of member 1.
  history.records[7].parent = MemberAt{.generation = 2, .member = 0};
  history.records[11].parent = MemberAt{.generation = 3, .member = 1};
  const std::string svg = population_svg(history);
  EXPECT_EQ(why_not_xml(svg), "");
  const std::vector<std::string> lines = bold_lines(svg);
  ASSERT_THAT(lines, SizeIs(3));
  const std::vector<std::string> y = all_matches(dots_of(svg), R"re(cy="([0-9.]+)")re");
  ASSERT_THAT(y, SizeIs(12)) << "by member, then by generation";
  EXPECT_EQ(lines[2], "M114 " + y[0] + "h0H384.7L655.3 " + y[4] + "L926 " + y[8]);
  EXPECT_THAT(svg, HasSubstr("generation 3, member 1: 10; went on from member 0; lr 1<"));
  EXPECT_THAT(lines[1], MatchesRegex("M114 [0-9.]+h0H384\\.7H655\\.3V[0-9.]+H926V[0-9.]+")) << "hyper-parameters jump";
}

TEST(PopulationSvg, TakesTheLowestScoreForTheBestWhereThatIsBetter) {
  PopulationHistory history = history_of(3, 2);
  history.higher_is_better = false;
  const std::string svg = population_svg(history);
  EXPECT_THAT(svg, HasSubstr("Best accuracy: 2, member 0 in generation 1"));
  // Blue is the best of its generation, orange the worst.
  EXPECT_THAT(all_matches(dots_of(svg), R"re(fill="(#[0-9a-f]+)")re"),
              ElementsAre("#0b5394", "#0b5394", "#0b5394", "#f0a35e", "#f0a35e", "#f0a35e"));
}

TEST(PopulationSvg, HasACrossForThoseThatFailed) {
  PopulationHistory history = history_of(3, 2);
  history.records[2].score.reset();
  history.records[2].failure = "no memory";
  const std::string svg = population_svg(history);
  EXPECT_EQ(why_not_xml(svg), "");
  EXPECT_EQ(count(dots_of(svg), "<circle"), 5u);
  EXPECT_EQ(count(dots_of(svg), R"(class="failed")"), 1u);
  EXPECT_THAT(svg, HasSubstr("generation 2, member 0: failed: no memory"));
  const std::string scores = part_of(svg, R"(<g class="members")", "</g>");
  EXPECT_EQ(count(scores, "M"), 3u) << "its line is broken";

  for (PopulationRecord& its : history.records) its.score.reset();
  const std::string none = population_svg(history);
  EXPECT_EQ(why_not_xml(none), "");
  EXPECT_THAT(none, HasSubstr("No member has a score."));
  EXPECT_THAT(bold_lines(none), IsEmpty());
  EXPECT_EQ(count(dots_of(none), R"(class="failed")"), 6u);
}

TEST(PopulationSvg, HasARowForEachCategory) {
  PopulationHistory history = history_of(2, 4);
  const std::vector<std::string> names{R"("adam")", R"("sgd")", "true", "[1,2]"};
  for (PopulationRecord& its : history.records)
    its.hyper_parameters = {{"name", names[static_cast<std::size_t>(its.at.member)]}, {"units", "64"}};
  history.records[5].hyper_parameters.erase(history.records[5].hyper_parameters.begin());
  const std::string svg = population_svg(history);
  EXPECT_EQ(why_not_xml(svg), "");
  const std::string rows = part_of(svg, ">name</text>", ">units</text>");
  for (const char* label : {">adam<", ">sgd<", ">true<", ">[1,2]<"}) EXPECT_EQ(count(rows, label), 1u) << label;
  EXPECT_THAT(svg, HasSubstr(">64<"));
  EXPECT_EQ(count(part_of(rows, R"(<g class="members")", "</g>"), "H926"), 3u) << "one of them has none later";
}

TEST(PopulationSvg, HasALogarithmicAxisForNumbersFarApart) {
  EXPECT_THAT(population_svg(history_of(2, 2)), HasSubstr(">lr (logarithmic)<"));
  EXPECT_THAT(population_svg(history_of(2, 1)), HasSubstr(">lr<"));
}

TEST(PopulationSvg, EscapesWhateverTextsHold) {
  PopulationHistory history = history_of(1, 2);
  history.score_name = "<a> & \"b\"";
  history.records[0].hyper_parameters = {{"<script>&\"", R"("</text>&\"")"},
                                         {"\xff\x01\xef\xbf\xbf]]>", "\"\\u0000\""}};
  history.records[0].score.reset();
  history.records[0].failure = "<&\"\n\x1b" + std::string(10000, '&');
  const std::string svg = population_svg(history);
  EXPECT_EQ(why_not_xml(svg), "");
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;&quot;"));
  EXPECT_THAT(svg, HasSubstr("&lt;/text&gt;&amp;&quot;"));
  EXPECT_THAT(svg, HasSubstr("failed: &lt;&amp;&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_LT(svg.size(), 20000u) << "long texts are cut";
}

TEST(PopulationSvg, TakesMembersThatDoNotKeepInStep) {
  PopulationHistory history{.score_name = "score"};
  history.records = {record(1, 0, 1), record(2, 0, 2), record(3, 0, 9), record(1, 1, 1), record(2, 1, 10)};
  history.records[4].parent = MemberAt{.generation = 3, .member = 0};  // from a later generation
  history.records[3].parent = MemberAt{.generation = 7, .member = 7};  // which is not there
  const std::string svg = population_svg(history);
  EXPECT_EQ(why_not_xml(svg), "");
  EXPECT_EQ(count(dots_of(svg), "<circle"), 5u);
  const std::vector<std::string> y = all_matches(dots_of(svg), R"re(cy="([0-9.]+)")re");
  EXPECT_EQ(bold_lines(svg).back(), "M114 " + y[0] + "h0H520H926L520 " + y[4]);
}

TEST(PopulationSvg, TakesNumbersOfAnySize) {
  constexpr double kMax = std::numeric_limits<double>::max();
  PopulationHistory history = history_of(1, 3);
  history.records[0].score = -kMax;
  history.records[1].score = kMax;
  history.records[0].hyper_parameters = {{"lr", "1e308"}};
  history.records[1].hyper_parameters = {{"lr", "-1e308"}};
  history.records[2].at.generation = std::numeric_limits<std::int64_t>::max();
  history.records[2].at.member = std::numeric_limits<std::int64_t>::max();
  const std::string svg = population_svg(history);
  EXPECT_EQ(why_not_xml(svg), "");
  EXPECT_THAT(all_matches(svg, "nan|inf"), IsEmpty());
}

TEST(PopulationSvg, IsTheSameForTheSameHistory) {
  EXPECT_EQ(population_svg(history_of(5, 5)), population_svg(history_of(5, 5)));
}

TEST(PopulationSvg, HasAtMostTwoDigitsAfterThePointInCoordinates) {
  const std::string svg = population_svg(history_of(7, 3));
  for (const std::string& number : all_matches(svg, R"re([ "MLHV](-?[0-9]+\.[0-9]+)["HLMVh ])re"))
    EXPECT_LE(number.size() - number.find('.'), 3u) << number;
}

TEST(PopulationSvg, LeavesOutWhatWouldBeTooMuchAndSaysSo) {
  PopulationHistory history = history_of(500, 500);
  // The best one of all is in a generation that would be left out, and goes back to a member that would be, too.
  const std::size_t best = 249 * 500 + 7;
  history.records[best].score = 1e6;
  history.records[best].parent = MemberAt{.generation = 249, .member = 3};
  const std::string svg = population_svg(history);
  EXPECT_THAT(svg, HasSubstr("Drawn: one generation in 3, and the best 200 of 500 members."));
  EXPECT_THAT(svg, HasSubstr("Best accuracy: 1e+06, member 7 in generation 250"));
  const std::string dots = dots_of(svg);
  EXPECT_EQ(count(dots, "<circle"), 200u * 167 + 1);
  EXPECT_THAT(svg, HasSubstr(">member 3<"));
  EXPECT_LT(svg.size(), 5u << 20);
  EXPECT_EQ(count(bold_lines(svg).back(), "H") + count(bold_lines(svg).back(), "L"), 83u);

  const std::string long_one = population_svg(history_of(401, 2));
  EXPECT_THAT(long_one, HasSubstr("Drawn: one generation in 3."));
  EXPECT_EQ(count(dots_of(long_one), "<circle"), 2u * 134);
  EXPECT_EQ(why_not_xml(long_one), "");
  EXPECT_THAT(population_svg(history_of(1, 201)), HasSubstr("Drawn: the best 200 of 201 members."));
}

TEST(PopulationRecord, IsReadFromALine) {
  const auto its = population_record(
      R"({"generation":2,"member":3,"score":0.87,"parent":{"member":0,"generation":1},"copied":["weights"],"hyper_parameters":{"optimizer.lr":0.013,"name":"adam"}})");
  ASSERT_TRUE(its);
  EXPECT_EQ(its->at, (MemberAt{.generation = 2, .member = 3}));
  EXPECT_EQ(its->score, 0.87);
  EXPECT_EQ(its->parent, (MemberAt{.generation = 1, .member = 0}));
  EXPECT_THAT(its->hyper_parameters, ElementsAre(std::pair("optimizer.lr", "0.013"), std::pair("name", "\"adam\"")));
  const auto failed = population_record(
      R"({"generation":1,"member":0,"score":null,"failure":"x","parent":null,"hyper_parameters":{}})");
  ASSERT_TRUE(failed);
  EXPECT_FALSE(failed->score);
  EXPECT_EQ(failed->failure, "x");
}

TEST(PopulationRecord, GoesOnFromItselfWhereItTookOverHyperParametersAlone) {
  const auto its = population_record(
      R"({"generation":2,"member":3,"score":1,"parent":{"member":0,"generation":1},"copied":["hyper_parameters"],"hyper_parameters":{}})");
  ASSERT_TRUE(its);
  EXPECT_FALSE(its->parent);
}

TEST(PopulationRecord, IsNotReadFromWhatIsNone) {
  const std::string whole = R"({"generation":1,"member":0,"score":1,"parent":null,"hyper_parameters":{"lr":1}})";
  ASSERT_TRUE(population_record(whole));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(population_record(whole.substr(0, length))) << length;
  EXPECT_FALSE(population_record(R"({"generation":0,"member":0,"score":1,"hyper_parameters":{}})"));
  EXPECT_FALSE(population_record("[]"));
}

}  // namespace
}  // namespace tutti::detail
