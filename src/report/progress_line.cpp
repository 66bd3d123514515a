#include <tutti/report/progress_line.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "columns.hpp"

namespace tutti {
namespace {

using detail::columns_of;

constexpr std::string_view kBetween = "  ";
constexpr int kShortestBar = 8;
constexpr int kLongestBar = 40;
constexpr int kLongestName = 24;

// In the order in which they are shown.
enum class Part { bar, step, epoch, members, loss, metric, rows_per_second, communication, time_left };

constexpr std::array kByImportance{Part::step,          Part::loss,  Part::time_left,
                                   Part::metric,        Part::bar,   Part::rows_per_second,
                                   Part::communication, Part::epoch, Part::members};

std::string of_total(std::int64_t count, std::int64_t total) {
  return total > 0 ? fmt::format("{}/{}", count, total) : fmt::format("{}", count);
}

// The count as wide as the total, so that what follows stays in its place.
std::string aligned_of_total(std::int64_t count, std::int64_t total) {
  return total > 0 ? fmt::format("{:>{}}/{}", count, fmt::formatted_size("{}", total), total) : of_total(count, total);
}

std::string rate(double value) {
  constexpr std::array kUnits{"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f}{}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

// Empty where it is not known. A bar is drawn later, when its length is known.
std::string text_of(Part part, const ProgressState& state) {
  switch (part) {
    case Part::bar: return "";
    case Part::step: return aligned_of_total(state.step, state.steps);
    case Part::epoch:
      return state.epoch > 0 && state.unit == "step" ? "epoch " + of_total(state.epoch, state.epochs) : "";
    case Part::members:
      return state.members_through > 0 ? "members " + of_total(state.members_through, state.members) : "";
    case Part::loss: return state.loss ? "loss " + format_measure(*state.loss) : "";
    case Part::metric: {
      if (!state.metric) return "";
      const std::string name = detail::cut_to_columns(detail::without_controls(state.metric->name), kLongestName);
      return name + " " + format_measure(state.metric->value);
    }
    case Part::rows_per_second:
      return state.rows_per_second && std::isfinite(*state.rows_per_second) ? rate(*state.rows_per_second) + " rows/s"
                                                                            : "";
    case Part::communication:
      return state.communication_share && std::isfinite(*state.communication_share)
                 ? fmt::format("comm {:.0f}%", 100 * *state.communication_share)
                 : "";
    case Part::time_left:
      return state.seconds_left && std::isfinite(*state.seconds_left) ? format_duration(*state.seconds_left) + " left"
                                                                      : "";
  }
  return "";
}

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string bar(const ProgressState& state, int columns, BarStyle style) {
  const double done = std::clamp(static_cast<double>(state.step) / static_cast<double>(state.steps), 0.0, 1.0);
  if (style == BarStyle::lines) {
    const int filled = static_cast<int>(done * columns);
    return repeated("━", filled) + repeated("─", columns - filled);
  }
  const int cells = columns - 2;
  const int filled = static_cast<int>(done * cells);
  const std::string head = filled > 0 && filled < cells ? ">" : "";
  return "[" + repeated("=", filled - static_cast<int>(head.size())) + head + repeated(" ", cells - filled) + "]";
}

struct ShownPart {
  Part part;
  std::string text;
  int columns;
};

}  // namespace

std::string progress_line(const ProgressState& state, int width, BarStyle bar_style) {
  std::vector<ShownPart> shown;
  int room = width;
  for (const Part part : kByImportance) {
    if (part == Part::bar && state.steps <= 0) continue;
    ShownPart next{.part = part, .text = text_of(part, state), .columns = kShortestBar};
    if (part != Part::bar) next.columns = columns_of(next.text);
    if (next.columns == 0) continue;
    const int needed = next.columns + (shown.empty() ? 0 : columns_of(kBetween));
    // The step alone is cut where it must be.
    if (needed > room) {
      if (shown.empty()) return detail::cut_to_columns(next.text, std::max(width, 0));
      break;
    }
    room -= needed;
    shown.push_back(std::move(next));
  }
  std::ranges::sort(shown, {}, &ShownPart::part);
  std::string line;
  for (const ShownPart& part : shown) {
    if (!line.empty()) line += kBetween;
    line += part.part == Part::bar ? bar(state, std::min(kShortestBar + room, kLongestBar), bar_style) : part.text;
  }
  return line;
}

std::string progress_text(const ProgressState& state) {
  std::string text = fmt::format("{} {}", state.unit, of_total(state.step, state.steps));
  for (const Part part : {Part::epoch, Part::members, Part::loss, Part::metric, Part::rows_per_second,
                          Part::communication, Part::time_left}) {
    const std::string its = text_of(part, state);
    if (!its.empty()) text += fmt::format("{}{}", kBetween, its);
  }
  return text;
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e12;
  const auto whole = static_cast<std::int64_t>(seconds > 0 ? std::min(seconds, kLongest) : 0.0);  // NaN is 0
  const std::int64_t hours = whole / 3600;
  const std::int64_t minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string format_measure(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  const double size = std::abs(value);
  if (std::isinf(value) || size == 0 || (size >= 0.001 && size < 99999.5)) return fmt::format("{:.4f}", value);
  return fmt::format("{:.3e}", value);
}

}  // namespace tutti
