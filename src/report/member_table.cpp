#include "member_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "columns.hpp"
#include "event_json.hpp"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostMembers = 20;
constexpr int kWidestValue = 24;  // lists and long names are cut

bool has_failed(const event::MemberEvaluated& member) {
  return !member.failure.empty() || !std::isfinite(member.score);
}

struct Column {
  std::string heading;
  bool is_to_the_right = false;
  std::vector<std::string> cells = {};
};

// One that depends on another may not be there.
std::string value_at(const event::MemberEvaluated& member, const std::string& path) {
  const auto& values = member.hyper_parameters;
  const auto found = std::ranges::find(values, path, [](const auto& value) { return value.first; });
  if (found == values.end()) return "-";
  return cut_to_columns(without_controls(value_text(found->second)), kWidestValue);
}

// Of all members, in the order in which they come first.
std::vector<std::string> paths_of(const std::vector<event::MemberEvaluated>& members) {
  std::vector<std::string> paths;
  for (const event::MemberEvaluated& member : members) {
    for (const auto& [path, text] : member.hyper_parameters) {
      if (std::ranges::find(paths, path) == paths.end()) paths.push_back(path);
    }
  }
  return paths;
}

std::string padded(std::string_view text, int columns, bool is_to_the_right) {
  const std::string blanks(static_cast<std::size_t>(std::max(columns - columns_of(text), 0)), ' ');
  return is_to_the_right ? blanks + std::string(text) : std::string(text) + blanks;
}

std::vector<std::string> lines_of(const std::vector<Column>& columns) {
  std::vector<std::string> lines(columns.front().cells.size() + 1);
  for (const Column& column : columns) {
    int width = columns_of(column.heading);
    for (const std::string& cell : column.cells) width = std::max(width, columns_of(cell));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (!lines[i].empty()) lines[i] += "  ";
      lines[i] += padded(i == 0 ? column.heading : column.cells[i - 1], width, column.is_to_the_right);
    }
  }
  for (std::string& line : lines) line.resize(line.find_last_not_of(' ') + 1);
  return lines;
}

}  // namespace

std::vector<std::string> member_table(std::vector<event::MemberEvaluated> members, bool higher_is_better) {
  if (members.empty()) return {};
  std::ranges::sort(members, [&](const event::MemberEvaluated& a, const event::MemberEvaluated& b) {
    if (has_failed(a) != has_failed(b)) return has_failed(b);
    if (!has_failed(a) && a.score != b.score) return (a.score > b.score) == higher_is_better;
    return a.member < b.member;
  });
  const std::vector<std::string> paths = paths_of(members);
  const std::size_t shown = std::min(members.size(), kMostMembers);
  const std::size_t more = members.size() - shown;
  members.resize(shown);
  const auto column = [&](Column made, const auto& cell) {
    for (const event::MemberEvaluated& member : members) made.cells.push_back(cell(member));
    return made;
  };
  using Member = event::MemberEvaluated;
  std::vector<Column> columns;
  columns.push_back(column({.heading = "member", .is_to_the_right = true},
                           [](const Member& member) { return fmt::format("{}", member.member); }));
  columns.push_back(column({.heading = "score"}, [](const Member& member) {
    return has_failed(member) ? "failed" : fmt::format("{:.4g}", member.score);
  }));
  columns.push_back(column({.heading = "from", .is_to_the_right = true}, [](const Member& member) {
    return member.parent ? fmt::format("{}", *member.parent) : "-";
  }));
  for (const std::string& path : paths)
    columns.push_back(
        column({.heading = without_controls(path)}, [&](const Member& member) { return value_at(member, path); }));
  std::vector<std::string> lines = lines_of(columns);
  if (more > 0) lines.push_back(fmt::format("and {} more", more));
  return lines;
}

}  // namespace tutti::detail
