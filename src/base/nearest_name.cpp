#include <tutti/base/nearest_name.hpp>

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

// Case and the way words are joined are no difference in spelling.
std::string folded(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z')
      result += static_cast<char>(c - 'A' + 'a');
    else if (c != '_' && c != '-' && c != ' ')
      result += c;
  }
  return result;
}

// How many characters to add, drop, replace or swap with their neighbour to get from one to the other.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& names) {
  const std::string wanted = folded(name);
  std::optional<std::string> nearest;
  std::size_t fewest = 0;
  for (const std::string& candidate : names) {
    const std::string offered = folded(candidate);
    const auto [shorter, longer] = std::minmax({wanted.size(), offered.size()});
    const std::size_t allowed = longer / 3;
    if (longer - shorter > allowed) continue;  // also keeps a key of megabytes from costing their square
    const std::size_t distance = edits(wanted, offered);
    if (distance > allowed || (nearest && distance >= fewest)) continue;
    nearest = candidate;
    fewest = distance;
  }
  return nearest;
}

}  // namespace tutti
