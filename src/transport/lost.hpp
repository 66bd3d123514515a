// Ranks that are gone, as a failure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti::detail {

// With why each is gone. Who gave up because of others is not to blame, and is named only where nobody else is gone.
inline Failure lost_ranks(std::vector<std::pair<Rank, std::string>> gone) {
  const auto gave_up = [](const auto& one) { return one.second.starts_with(kGaveUp); };
  if (!std::ranges::all_of(gone, gave_up)) std::erase_if(gone, gave_up);
  Failure failure{FailureKind::lost, {}, ""};
  for (const auto& [rank, why] : gone) {
    failure.ranks.push_back(rank);
    failure.message += fmt::format("{}{} {}", failure.message.empty() ? "" : "; ", to_string(rank), why);
  }
  return failure;
}

}  // namespace tutti::detail
