#include "members.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

namespace tutti {

std::string list_of(const std::vector<Rank>& members) {
  std::string text;
  for (Rank member : members) text += (text.empty() ? "" : ", ") + std::to_string(member.value);
  return "[" + text + "]";
}

void refuse_wrong_members(const std::vector<Rank>& members, Rank rank) {
  if (std::set<Rank>(members.begin(), members.end()).size() != members.size()) {
    throw UsageError(fmt::format("a rank stands twice in the list of members {}", list_of(members)));
  }
  if (std::ranges::find(members, rank) == members.end()) {
    throw UsageError(fmt::format("{} is not in its own list of members {}", to_string(rank), list_of(members)));
  }
}

}  // namespace tutti
