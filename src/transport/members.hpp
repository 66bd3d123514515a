// The list of members that ranks bring to form a new world, the same for every backend.
#pragma once

#include <string>
#include <vector>

#include <tutti/base/rank.hpp>

namespace tutti {

// "[3, 1]"
std::string list_of(const std::vector<Rank>& members);

// A UsageError where a rank stands twice in it, or `rank`, who brings it, not at all.
void refuse_wrong_members(const std::vector<Rank>& members, Rank rank);

}  // namespace tutti
