#include <tutti/base/rank.hpp>

#include <fmt/format.h>

namespace tutti {

std::vector<Rank> all_ranks_but(Rank rank, int size) {
  std::vector<Rank> others;
  for (Rank other : all_ranks(size)) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

std::string to_string(Rank rank) { return fmt::format("rank {}", rank.value); }

std::string to_string(const std::vector<Rank>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return to_string(ranks.front());
  std::string text = "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i].value);
  }
  return text;
}

}  // namespace tutti
