#include "population_svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "axis.hpp"
#include "columns.hpp"
#include "event_json.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostGenerations = 200;
constexpr std::size_t kMostMembersDrawn = 200;
constexpr std::size_t kMostTooltips = 2000;  // they are most of the bytes of a picture

constexpr double kWidth = 960;
constexpr double kLeft = 104;
constexpr double kRight = 24;
constexpr double kInset = 10;  // what stands at the ends of an axis is not cut
constexpr double kTextHeight = 14;
constexpr int kWidestLabel = 14;     // in columns, left of a panel
constexpr int kWidestHeading = 100;  // in columns, above it

constexpr std::string_view kPaper = "#fcfcfb";
constexpr std::string_view kInk = "#1f2328";
constexpr std::string_view kFaintInk = "#6e7781";
constexpr std::string_view kGrid = "#e4e6e8";
constexpr std::string_view kFrame = "#b8bdc3";
constexpr std::string_view kTakenOver = "#c2703d";
constexpr std::array<std::string_view, 8> kMemberColours{"#4c78a8", "#e08214", "#54a24b", "#b279a2",
                                                         "#72b7b2", "#d4a017", "#9d755d", "#e45756"};

// --- what is drawn of a history ---

using Records = std::vector<std::size_t>;

struct Selection {
  std::vector<std::int64_t> generations = {};            // the numbers, in their order
  std::vector<std::int64_t> members = {};                // the same
  std::map<std::int64_t, Records> of_members = {};       // their records, by generation
  std::optional<std::size_t> best = {};                  // which is drawn, whatever its generation
  Records ancestors = {};                                // of the best one, the oldest first
  std::vector<std::optional<std::size_t>> origins = {};  // of each record the nearest that is drawn
  std::string sentence = {};                             // what is left out
};

std::vector<std::int64_t> every_nth_until_the_last(const std::set<std::int64_t>& numbers, std::size_t n) {
  std::vector<std::int64_t> kept;
  std::size_t back = numbers.size();
  for (const std::int64_t number : numbers) {
    if (--back % n == 0) kept.push_back(number);
  }
  return kept;
}

// The best one's ancestors among them, then those with the best scores; in the order of their numbers.
std::vector<std::int64_t> best_members(const PopulationHistory& history, const Records& ancestors) {
  std::map<std::int64_t, std::optional<double>> scores;  // the higher, the better
  for (const PopulationRecord& record : history.records) {
    std::optional<double>& best = scores[record.at.member];
    if (record.score) best = std::max(best, std::optional(history.higher_is_better ? *record.score : -*record.score));
  }
  std::vector<std::int64_t> ranked;
  for (auto ancestor = ancestors.rbegin(); ancestor != ancestors.rend(); ++ancestor)
    ranked.push_back(history.records[*ancestor].at.member);
  std::vector<std::int64_t> others;
  for (const auto& [member, score] : scores) others.push_back(member);
  std::ranges::stable_sort(others, [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
  ranked.insert(ranked.end(), others.begin(), others.end());
  std::set<std::int64_t> kept;
  for (std::size_t i = 0; i < ranked.size() && kept.size() < kMostMembersDrawn; ++i) kept.insert(ranked[i]);
  return {kept.begin(), kept.end()};
}

Selection select(const PopulationHistory& history) {
  Selection selection;
  std::set<std::int64_t> generations;
  std::set<std::int64_t> members;
  for (const PopulationRecord& record : history.records) {
    generations.insert(record.at.generation);
    members.insert(record.at.member);
  }
  const std::size_t nth = std::max<std::size_t>((generations.size() + kMostGenerations - 1) / kMostGenerations, 1);
  selection.generations = every_nth_until_the_last(generations, nth);
  const auto has_generation = [&](std::size_t record) {
    return std::ranges::binary_search(selection.generations, history.records[record].at.generation);
  };

  const std::vector<std::optional<std::size_t>> origins = origins_of(history);
  selection.best = best_of(history);
  if (selection.best) selection.ancestors = ancestors_of(*selection.best, origins);
  std::erase_if(selection.ancestors, [&](std::size_t i) { return !has_generation(i) && i != *selection.best; });
  selection.members = best_members(history, selection.ancestors);
  const auto has_member = [&](std::size_t record) {
    return std::ranges::binary_search(selection.members, history.records[record].at.member);
  };
  std::erase_if(selection.ancestors, [&](std::size_t i) { return !has_member(i); });

  std::vector<bool> is_drawn(history.records.size());
  for (std::size_t i = 0; i < is_drawn.size(); ++i) {
    is_drawn[i] = has_member(i) && (has_generation(i) || i == selection.best);
    if (is_drawn[i]) selection.of_members[history.records[i].at.member].push_back(i);
  }
  selection.origins = origins;
  for (std::size_t i = 0; i < is_drawn.size(); ++i) {
    // Origins come before: where one is not drawn, its own is known by now.
    if (const std::optional<std::size_t> origin = origins[i]; origin && !is_drawn[*origin])
      selection.origins[i] = selection.origins[*origin];
  }

  if (nth > 1) selection.sentence = fmt::format("one generation in {}", nth);
  if (members.size() > selection.members.size())
    selection.sentence +=
        fmt::format("{}the best {} of {} members", nth > 1 ? ", and " : "", selection.members.size(), members.size());
  if (!selection.sentence.empty()) selection.sentence = "Drawn: " + selection.sentence + ".";
  return selection;
}

// --- shapes ---

// At most one digit after the point: a tenth of a pixel.
std::string coordinate(double value) {
  const auto tenths = static_cast<std::int64_t>(std::llround(value * 10));
  if (tenths % 10 == 0) return fmt::format("{}", tenths / 10);
  return fmt::format("{}{}.{}", tenths < 0 ? "-" : "", std::abs(tenths) / 10, std::abs(tenths) % 10);
}

std::string escaped(std::string_view text) {
  std::string xml;
  for (const char letter : without_controls(text)) {
    switch (letter) {
      case '<': xml += "&lt;"; break;
      case '>': xml += "&gt;"; break;
      case '&': xml += "&amp;"; break;
      case '"': xml += "&quot;"; break;
      default: xml += letter;
    }
  }
  // Two characters of Unicode that XML has not.
  for (const std::string_view none : {"\xef\xbf\xbe", "\xef\xbf\xbf"}) {
    for (std::size_t at; (at = xml.find(none)) != std::string::npos;) xml.replace(at, none.size(), "\xef\xbf\xbd");
  }
  return xml;
}

std::string shortened(std::string_view text, int columns) {
  const std::string shown = without_controls(text);
  return columns_of(shown) <= columns ? shown : cut_to_columns(shown, columns - 1) + "…";
}

struct TextStyle {
  std::string_view anchor = "start";
  std::string_view colour = kInk;
  double size = 12;
  bool is_bold = false;
};

std::string text_shape(double x, double y, std::string_view text, const TextStyle& style = {}) {
  return fmt::format(R"(<text x="{}" y="{}" font-size="{}" fill="{}" text-anchor="{}"{}>{}</text>)"
                     "\n",
                     coordinate(x), coordinate(y), coordinate(style.size), style.colour, style.anchor,
                     style.is_bold ? R"( font-weight="bold")" : "", escaped(text));
}

std::string line_shape(double x1, double y1, double x2, double y2, std::string_view colour) {
  return fmt::format(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}"/>)"
                     "\n",
                     coordinate(x1), coordinate(y1), coordinate(x2), coordinate(y2), colour);
}

std::string circle_shape(double x, double y, double radius, std::string_view colour, std::string_view inside = "") {
  const std::string begin = fmt::format(R"(<circle cx="{}" cy="{}" r="{}" fill="{}")", coordinate(x), coordinate(y),
                                        coordinate(radius), colour);
  return inside.empty() ? begin + "/>\n" : fmt::format("{}>{}</circle>\n", begin, inside);
}

std::string cross_data(double x, double y, double radius) {
  return fmt::format("M{} {}L{} {}M{} {}L{} {}", coordinate(x - radius), coordinate(y - radius), coordinate(x + radius),
                     coordinate(y + radius), coordinate(x - radius), coordinate(y + radius), coordinate(x + radius),
                     coordinate(y - radius));
}

// From orange, the worst, to blue, the best: so that it can be told apart by all eyes.
std::string score_colour(double share) {
  constexpr std::array<std::array<double, 3>, 3> kStops{{{240, 163, 94}, {142, 178, 173}, {11, 83, 148}}};
  const double at = std::clamp(share, 0.0, 1.0) * 2;
  const std::size_t stop = at < 1 ? 0 : 1;
  const double rest = at - static_cast<double>(stop);
  const auto part = [&](std::size_t i) {
    return static_cast<int>(std::lround(kStops[stop][i] * (1 - rest) + kStops[stop + 1][i] * rest));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", part(0), part(1), part(2));
}

// A line through points, which may be broken.
class Path {
 public:
  // Values that hold until the next are joined by steps, others straight.
  explicit Path(bool has_steps) : has_steps_(has_steps) {}

  void to(double x, double y) {
    const std::string its_x = coordinate(x);
    const std::string its_y = coordinate(y);
    if (!is_open_)
      data_ += fmt::format("M{} {}h0", its_x, its_y);  // a point, where nothing follows
    else if (!has_steps_ && its_y != y_)
      data_ += fmt::format("L{} {}", its_x, its_y);
    else
      data_ += "H" + its_x + (its_y == y_ ? "" : "V" + its_y);
    is_open_ = true;
    y_ = its_y;
  }
  void interrupt() { is_open_ = false; }
  const std::string& data() const { return data_; }

 private:
  bool has_steps_;
  bool is_open_ = false;
  std::string y_;
  std::string data_;
};

// --- panels ---

struct Place {
  double top = 0;
  double height = 0;
  double bottom() const { return top + height; }
};

// Where a record stands in a panel, counted down from its top; nowhere, where it has no such value.
using Height = std::function<std::optional<double>(const PopulationRecord&)>;

const std::string* find_value(const PopulationRecord& record, const std::string& path) {
  const auto found = std::ranges::find(record.hyper_parameters, path, [](const auto& value) { return value.first; });
  return found == record.hyper_parameters.end() ? nullptr : &found->second;
}

std::optional<double> number_of(const std::string& json) {
  const auto value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

class Picture {
 public:
  explicit Picture(const PopulationHistory& history)
      : history_(history), drawn_(select(history)), generations_(Axis::linear(values([](const auto& its) {
          return std::optional(static_cast<double>(its.at.generation));
        }))) {}

  std::string svg() {
    draw_heading();
    if (!history_.records.empty()) {
      draw_scores();
      for (const std::string& path : hyper_parameter_paths()) draw_hyper_parameter(path);
      draw_lineage();
    }
    const std::string height = coordinate(bottom_ + kTextHeight);
    return fmt::format(
               R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="system-ui, sans-serif">)"
               "\n<title>Population</title>\n"
               R"(<rect width="{0}" height="{1}" fill="{2}"/>)"
               "\n",
               coordinate(kWidth), height, kPaper) +
           body_ + "</svg>\n";
  }

 private:
  const PopulationRecord& record(std::size_t index) const { return history_.records[index]; }
  std::string score_name() const { return history_.score_name.empty() ? "score" : history_.score_name; }

  double x_of(double generation) const {
    return kLeft + kInset + generations_.share(generation) * (kWidth - kLeft - kRight - 2 * kInset);
  }
  double x_of(const PopulationRecord& its) const { return x_of(static_cast<double>(its.at.generation)); }

  void draw_heading() {
    bottom_ = 32;
    if (history_.records.empty()) {
      body_ += text_shape(kRight, bottom_, "No member has been evaluated yet.", {.size = 16, .is_bold = true});
      return;
    }
    std::string heading = "No member has a score.";
    if (drawn_.best) {
      const PopulationRecord& best = record(*drawn_.best);
      heading = fmt::format("Best {}: {:.4g}, member {} in generation {}", shortened(score_name(), 40), *best.score,
                            best.at.member, best.at.generation);
    }
    body_ += text_shape(kRight, bottom_, heading, {.size = 16, .is_bold = true});
    const auto say = [&](std::string_view sentence) {
      bottom_ += 18;
      body_ += text_shape(kRight, bottom_, sentence, {.colour = kFaintInk});
    };
    if (drawn_.best) say("The line of its ancestors is bold.");
    if (!drawn_.sentence.empty()) say(drawn_.sentence);
  }

  // A frame with a title and with the generations below it.
  Place begin_panel(std::string_view title, double height) {
    const Place place{.top = bottom_ + 40, .height = height};
    body_ += text_shape(kLeft, place.top - 8, shortened(title, kWidestHeading), {.size = 13, .is_bold = true});
    for (const Tick& tick : generations_.ticks(/*smallest_step=*/1)) {
      const double x = x_of(tick.value);
      body_ += line_shape(x, place.top, x, place.bottom(), kGrid);
      body_ += text_shape(x, place.bottom() + 15, tick.label, {.anchor = "middle", .colour = kFaintInk, .size = 11});
    }
    bottom_ = place.bottom() + 30;
    body_ += text_shape(kWidth - kRight, bottom_, "generation", {.anchor = "end", .colour = kFaintInk, .size = 11});
    return place;
  }

  void draw_mark(const Place& place, double height, std::string_view label) {
    const double y = place.top + height;
    body_ += line_shape(kLeft, y, kWidth - kRight, y, kGrid);
    body_ += text_shape(kLeft - 8, y + 4, shortened(label, kWidestLabel),
                        {.anchor = "end", .colour = kFaintInk, .size = 11});
  }

  void draw_frame(const Place& place) {
    body_ += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="none" stroke="{}"/>)"
                         "\n",
                         coordinate(kLeft), coordinate(place.top), coordinate(kWidth - kLeft - kRight),
                         coordinate(place.height), kFrame);
  }

  // A thin line for each member, and a bold one for the ancestors of the best.
  void draw_lines(const Place& place, bool has_steps, const Height& height) {
    const auto path_through = [&](const Records& records) {
      Path path(has_steps);
      for (const std::size_t index : records) {
        if (const auto its = height(record(index)))
          path.to(x_of(record(index)), place.top + *its);
        else
          path.interrupt();
      }
      return path.data();
    };
    body_ += fmt::format(
        R"(<g class="members" fill="none" stroke-opacity="{:.2f}" stroke-linecap="round" stroke-linejoin="round">)"
        "\n",
        opacity());
    for (const auto& [member, records] : drawn_.of_members) {
      const std::string data = path_through(records);
      if (!data.empty())
        body_ += fmt::format(R"(<path stroke="{}" d="{}"/>)"
                             "\n",
                             kMemberColours[static_cast<std::size_t>(member) % kMemberColours.size()], data);
    }
    body_ += "</g>\n";
    draw_bold(path_through(drawn_.ancestors));
  }

  void draw_bold(const std::string& data) {
    if (data.empty()) return;
    body_ += fmt::format(
        R"(<path class="ancestors" fill="none" stroke="{}" stroke-width="2.5" stroke-linecap="round" stroke-linejoin="round" d="{}"/>)"
        "\n",
        kInk, data);
  }

  // Numbers from below to above.
  Height draw_axis(const Place& place, const Axis& axis,
                   std::function<std::optional<double>(const PopulationRecord&)> value) {
    const auto height = [axis, room = place.height](double its) {
      return room - kInset - axis.share(its) * (room - 2 * kInset);
    };
    for (const Tick& tick : axis.ticks()) draw_mark(place, height(tick.value), tick.label);
    draw_frame(place);
    return [height, value = std::move(value)](const PopulationRecord& its) -> std::optional<double> {
      const std::optional<double> found = value(its);
      return found ? std::optional(height(*found)) : std::nullopt;
    };
  }

  std::vector<double> values(const std::function<std::optional<double>(const PopulationRecord&)>& value) const {
    std::vector<double> all;
    for (const auto& [member, records] : drawn_.of_members) {
      for (const std::size_t index : records) {
        if (const auto its = value(record(index))) all.push_back(*its);
      }
    }
    return all;
  }

  void draw_scores() {
    const Place place = begin_panel(score_name(), 220);
    const auto score = [](const PopulationRecord& its) { return its.score; };
    draw_lines(place, /*has_steps=*/false, draw_axis(place, Axis::linear(values(score)), score));
  }

  // In the order in which they come first.
  std::vector<std::string> hyper_parameter_paths() const {
    std::vector<std::string> paths;
    for (const PopulationRecord& its : history_.records) {
      for (const auto& [path, json] : its.hyper_parameters) {
        if (std::ranges::find(paths, path) == paths.end()) paths.push_back(path);
      }
    }
    return paths;
  }

  void draw_hyper_parameter(const std::string& path) {
    std::vector<std::string> categories;  // in the order in which they come first
    std::map<std::string, std::size_t> rows;
    bool is_number = true;
    for (const auto& [member, records] : drawn_.of_members) {
      for (const std::size_t index : records) {
        const std::string* json = find_value(record(index), path);
        if (json == nullptr || !rows.emplace(*json, categories.size()).second) continue;
        categories.push_back(*json);
        is_number = is_number && number_of(*json);
      }
    }
    if (!is_number) return draw_categories(path, categories, rows);
    const auto value = [&path](const PopulationRecord& its) -> std::optional<double> {
      const std::string* json = find_value(its, path);
      return json == nullptr ? std::nullopt : number_of(*json);
    };
    const Axis axis = Axis::of(values(value));
    const Place place = begin_panel(path + (axis.is_logarithmic() ? " (logarithmic)" : ""), 150);
    draw_lines(place, /*has_steps=*/true, draw_axis(place, axis, value));
  }

  void draw_categories(const std::string& path, const std::vector<std::string>& categories,
                       const std::map<std::string, std::size_t>& rows) {
    constexpr double kTallest = 600;
    const auto count = static_cast<double>(categories.size());
    const Place place = begin_panel(path, std::min(30 * count, kTallest));
    const double row = place.height / count;
    const std::size_t labelled = labelled_every(row);
    for (std::size_t i = 0; i < categories.size(); i += labelled)
      draw_mark(place, (static_cast<double>(i) + 0.5) * row, value_text(categories[i]));
    draw_frame(place);
    draw_lines(place, /*has_steps=*/true, [&](const PopulationRecord& its) -> std::optional<double> {
      const std::string* json = find_value(its, path);
      if (json == nullptr) return std::nullopt;
      // Members of the same row lie side by side.
      const double side = (member_row(its.at.member) + 0.5) / static_cast<double>(drawn_.members.size()) - 0.5;
      return (static_cast<double>(rows.at(*json)) + 0.5 + 0.7 * side) * row;
    });
  }

  static std::size_t labelled_every(double row) { return static_cast<std::size_t>(std::ceil(kTextHeight / row)); }

  double member_row(std::int64_t member) const {
    return static_cast<double>(std::ranges::lower_bound(drawn_.members, member) - drawn_.members.begin());
  }

  // Who went on from whom: a dot for each member and generation, with the colour of its score.
  void draw_lineage() {
    constexpr double kTallest = 800;
    const auto members = static_cast<double>(drawn_.members.size());
    const double row = std::min(20.0, kTallest / members);
    const Place place = begin_panel("lineage: who went on from whom", row * members + 4);
    const auto y_of = [&](const PopulationRecord& its) {
      return place.top + 2 + (member_row(its.at.member) + 0.5) * row;
    };
    for (std::size_t i = 0; i < drawn_.members.size(); i += labelled_every(row))
      draw_mark(place, 2 + (static_cast<double>(i) + 0.5) * row, fmt::format("member {}", drawn_.members[i]));
    draw_frame(place);
    draw_legend(place.top - 12);

    std::string own;
    std::string taken_over;
    for (const auto& [member, records] : drawn_.of_members) {
      for (const std::size_t index : records) {
        if (!drawn_.origins[index]) continue;
        const PopulationRecord& its = record(index);
        const PopulationRecord& origin = record(*drawn_.origins[index]);
        const std::string from = fmt::format("M{} {}", coordinate(x_of(origin)), coordinate(y_of(origin)));
        if (origin.at.member == its.at.member)
          own += fmt::format("{}H{}", from, coordinate(x_of(its)));
        else
          taken_over += fmt::format("{}L{} {}", from, coordinate(x_of(its)), coordinate(y_of(its)));
      }
    }
    draw_links("own", kFrame, own);
    draw_links("taken_over", kTakenOver, taken_over);
    Path bold(/*has_steps=*/false);
    for (const std::size_t index : drawn_.ancestors) bold.to(x_of(record(index)), y_of(record(index)));
    draw_bold(bold.data());

    const double column = (kWidth - kLeft - kRight) / static_cast<double>(drawn_.generations.size());
    draw_dots(std::clamp(std::min(row, column) * 0.3, 1.0, 5.0), y_of);
  }

  // Where there are many lines, they are fainter, so that what lies on them can be seen.
  double opacity() const {
    const auto dots = static_cast<double>(drawn_.members.size() * drawn_.generations.size());
    return std::min(0.7, 0.7 * std::sqrt(1000 / dots));
  }

  void draw_links(std::string_view name, std::string_view colour, const std::string& data) {
    if (data.empty()) return;
    body_ += fmt::format(R"(<path class="{}" fill="none" stroke="{}" stroke-opacity="{:.2f}" d="{}"/>)"
                         "\n",
                         name, colour, opacity(), data);
  }

  void draw_dots(double radius, const std::function<double(const PopulationRecord&)>& y_of) {
    // The worst and the best score of each generation.
    std::map<std::int64_t, std::pair<double, double>> scores;
    std::size_t count = 0;
    for (const auto& [member, records] : drawn_.of_members) {
      count += records.size();
      for (const std::size_t index : records) {
        if (!record(index).score) continue;
        const double score = better_is_higher(*record(index).score);
        auto& [worst, best] = scores.try_emplace(record(index).at.generation, score, score).first->second;
        worst = std::min(worst, score);
        best = std::max(best, score);
      }
    }
    const bool has_tooltips = count <= kMostTooltips;
    body_ += R"(<g class="dots">)"
             "\n";
    for (const auto& [member, records] : drawn_.of_members) {
      for (const std::size_t index : records) {
        const PopulationRecord& its = record(index);
        const std::string tooltip =
            has_tooltips ? fmt::format("<title>{}</title>", escaped(tooltip_of(its, drawn_.origins[index]))) : "";
        if (its.score) {
          const auto [worst, best] = scores.at(its.at.generation);
          const double share =
              best > worst ? (better_is_higher(*its.score) / 2 - worst / 2) / (best / 2 - worst / 2) : 1;
          body_ += circle_shape(x_of(its), y_of(its), radius, score_colour(share), tooltip);
        } else {
          body_ += fmt::format(R"(<path class="failed" stroke="{}" stroke-width="1.5" d="{}">{}</path>)"
                               "\n",
                               kFaintInk, cross_data(x_of(its), y_of(its), radius), tooltip);
        }
      }
    }
    body_ += "</g>\n";
    if (!drawn_.best) return;
    const PopulationRecord& best = record(*drawn_.best);
    body_ += fmt::format(R"(<circle class="best" cx="{}" cy="{}" r="{}" fill="none" stroke="{}" stroke-width="2"/>)"
                         "\n",
                         coordinate(x_of(best)), coordinate(y_of(best)), coordinate(radius + 2.5), kInk);
  }

  double better_is_higher(double score) const { return history_.higher_is_better ? score : -score; }

  std::string tooltip_of(const PopulationRecord& its, const std::optional<std::size_t>& origin) const {
    std::string text = fmt::format(
        "generation {}, member {}: {}", its.at.generation, its.at.member,
        its.score ? fmt::format("{:.4g}", *its.score) : "failed: " + shortened(its.failure, kWidestHeading));
    if (origin && record(*origin).at.member != its.at.member)
      text += fmt::format("; went on from member {}", record(*origin).at.member);
    for (const auto& [path, json] : its.hyper_parameters)
      text += fmt::format("; {} {}", shortened(path, kWidestHeading), shortened(value_text(json), kWidestHeading));
    return text;
  }

  // "worst ..... best of its generation   x failed   / taken over", at the right of a title.
  void draw_legend(double y) {
    const TextStyle style{.anchor = "end", .colour = kFaintInk, .size = 11};
    double x = kWidth - kRight;
    const auto write = [&](std::string_view text, double width) {
      body_ += text_shape(x, y + 4, text, style);
      x -= width;
    };
    write("took over", 56);
    body_ += line_shape(x - 20, y + 4, x, y - 4, kTakenOver);
    x -= 36;
    write("failed", 38);
    body_ += fmt::format(R"(<path stroke="{}" stroke-width="1.5" d="{}"/>)"
                         "\n",
                         kFaintInk, cross_data(x, y, 3.5));
    x -= 20;
    write("best of its generation", 130);
    constexpr int kSteps = 5;
    for (int i = kSteps; i-- > 0; x -= 11)
      body_ += circle_shape(x, y, 4, score_colour(static_cast<double>(i) / (kSteps - 1)));
    write("worst", 0);
  }

  const PopulationHistory& history_;
  Selection drawn_;
  Axis generations_;
  std::string body_;
  double bottom_ = 0;  // of what is drawn so far
};

}  // namespace

std::string population_svg(const PopulationHistory& history) { return Picture(history).svg(); }

}  // namespace tutti::detail
