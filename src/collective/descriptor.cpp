#include "descriptor.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>

namespace tutti {
namespace {

struct Group {
  std::string value;
  std::vector<Rank> ranks;
};

template <typename Value>
std::vector<Group> group_by(std::span<const Descriptor> by_rank, Value value) {
  std::vector<Group> groups;
  for (Rank rank : all_ranks(static_cast<int>(by_rank.size()))) {
    const std::string text = value(by_rank[static_cast<std::size_t>(rank.value)]);
    const auto found = std::ranges::find(groups, text, &Group::value);
    if (found != groups.end()) {
      found->ranks.push_back(rank);
    } else {
      groups.push_back({text, {rank}});
    }
  }
  return groups;
}

// "length 5 on rank 2, 4 on ranks 0, 1 and 3"
std::string describe(std::string_view what, const std::vector<Group>& groups) {
  std::string text(what);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    text += fmt::format("{} {} on {}", i == 0 ? "" : ",", groups[i].value, to_string(groups[i].ranks));
  }
  return text;
}

std::vector<Rank> outside_majority(const std::vector<Group>& groups, std::size_t ranks) {
  std::vector<Rank> outside;
  for (const Group& group : groups) {
    if (2 * group.ranks.size() <= ranks) outside.insert(outside.end(), group.ranks.begin(), group.ranks.end());
  }
  std::ranges::sort(outside);
  return outside;
}

std::string_view describe(Misuse misuse) {
  switch (misuse) {
    case Misuse::none: return "nothing wrong";
    case Misuse::arity: return "a tree of an arity below 1";
    case Misuse::root: return "a root that does not exist";
    case Misuse::mean_of_integers: return "integers to take the mean of";
    case Misuse::length_of_result: return "memory of the wrong length for its result";
    case Misuse::type_of_result: return "memory of another type for its result";
    case Misuse::algorithm_for_call: return "an algorithm that this call does not have";
    case Misuse::memory_not_shared: return "SharedSlices, where memory is not shared";
    case Misuse::engine_not_there: return "the algorithm of an engine that is not under these ranks";
    case Misuse::engine_lacks_it: break;
  }
  return "what the engine's own algorithm cannot do";
}

std::optional<Failure> find_misuse(std::span<const Descriptor> by_rank) {
  std::vector<Rank> ranks;
  std::string text;
  for (Rank rank : all_ranks(static_cast<int>(by_rank.size()))) {
    const Descriptor& descriptor = by_rank[static_cast<std::size_t>(rank.value)];
    if (descriptor.misuse == Misuse::none) continue;
    ranks.push_back(rank);
    text += fmt::format("{}{} brought {}", text.empty() ? "" : "; ", to_string(rank), describe(descriptor.misuse));
  }
  if (ranks.empty()) return std::nullopt;
  return Failure{FailureKind::disagreement, ranks, fmt::format("{}: {}", to_string(by_rank.front().call), text)};
}

std::optional<Failure> find_wrong_sources(std::span<const Descriptor> by_rank) {
  if (std::ranges::count(by_rank, BroadcastRole::source, &Descriptor::role) == 1) return std::nullopt;
  std::vector<Rank> sources;
  for (Rank rank : all_ranks(static_cast<int>(by_rank.size()))) {
    if (by_rank[static_cast<std::size_t>(rank.value)].role == BroadcastRole::source) sources.push_back(rank);
  }
  if (sources.empty()) {
    const RankRange everybody = all_ranks(static_cast<int>(by_rank.size()));
    return Failure{FailureKind::disagreement,
                   {everybody.begin(), everybody.end()},
                   "broadcast: nothing to broadcast: no rank is the source"};
  }
  return Failure{FailureKind::disagreement, sources,
                 fmt::format("broadcast: several to broadcast: {} each say to be the source", to_string(sources))};
}

}  // namespace

void set_algorithm(Descriptor& descriptor, const AllReduceStrategy& algorithm) {
  descriptor.algorithm = static_cast<std::uint8_t>(algorithm.index());
  if (const Tree* tree = std::get_if<Tree>(&algorithm)) descriptor.arity = tree->arity;
}

AllReduceStrategy algorithm_of(const Descriptor& descriptor) {
  static const std::vector<AllReduceStrategy> kAll = all_reduce_strategies();
  for (AllReduceStrategy strategy : kAll) {
    if (strategy.index() != descriptor.algorithm) continue;
    if (Tree* tree = std::get_if<Tree>(&strategy)) tree->arity = descriptor.arity;
    return strategy;
  }
  TUTTI_ASSERT_EQ(static_cast<int>(descriptor.algorithm), -1);
  return Auto{};
}

std::optional<Failure> find_disagreement(std::span<const Descriptor> by_rank) {
  const Descriptor& first = by_rank.front();
  const bool by_source = first.role != BroadcastRole::by_root;
  const auto like_first = [&](Descriptor other) {
    if (by_source && other.role != BroadcastRole::by_root) other.role = first.role;
    return other == first;
  };
  if (first.misuse == Misuse::none && std::ranges::all_of(by_rank, like_first)) {
    return by_source ? find_wrong_sources(by_rank) : std::nullopt;
  }

  struct Field {
    std::string_view name;
    std::function<std::string(const Descriptor&)> value;
  };
  const auto calls = group_by(by_rank, [](const Descriptor& d) { return std::string(to_string(d.call)); });
  if (calls.size() > 1) {
    return Failure{FailureKind::disagreement, outside_majority(calls, by_rank.size()),
                   "the ranks disagree: " + describe("the call is", calls)};
  }
  if (auto misuse = find_misuse(by_rank)) return misuse;

  const std::vector<Field> fields{
      {"number of the call", [](const Descriptor& d) { return std::to_string(d.sequence); }},
      {"length", [](const Descriptor& d) { return std::to_string(d.length); }},
      {"type", [](const Descriptor& d) { return std::string(to_string(d.type)); }},
      {"operation", [](const Descriptor& d) { return std::string(to_string(d.op)); }},
      {"algorithm", [](const Descriptor& d) { return to_string(algorithm_of(d)); }},
      {"reproducible", [](const Descriptor& d) { return std::string(d.reproducible != 0 ? "yes" : "no"); }},
      {"source named by",
       [](const Descriptor& d) { return std::string(d.role == BroadcastRole::by_root ? "root" : "role"); }},
      {"root", [](const Descriptor& d) { return std::to_string(d.root); }},
  };
  std::string differences;
  std::vector<Rank> ranks;
  for (const Field& field : fields) {
    const std::vector<Group> groups = group_by(by_rank, field.value);
    if (groups.size() == 1) continue;
    differences += fmt::format("{}{}", differences.empty() ? "" : "; ", describe(field.name, groups));
    const std::vector<Rank> outside = outside_majority(groups, by_rank.size());
    ranks.insert(ranks.end(), outside.begin(), outside.end());
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return Failure{FailureKind::disagreement, ranks,
                 fmt::format("{}: the ranks disagree: {}", to_string(first.call), differences)};
}

Rank root_of(std::span<const Descriptor> by_rank) {
  if (by_rank.front().role == BroadcastRole::by_root) return Rank{by_rank.front().root};
  const auto source = std::ranges::find(by_rank, BroadcastRole::source, &Descriptor::role);
  return Rank{static_cast<int>(source - by_rank.begin())};
}

}  // namespace tutti
