#include <tutti/sync/sync_strategy.hpp>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/nearest_name.hpp>

namespace tutti {
namespace {

constexpr std::array kStrategies{SyncStrategy::all_reduce, SyncStrategy::reduce_to_root, SyncStrategy::no_sync};

}  // namespace

std::string_view to_string(SyncStrategy strategy) {
  switch (strategy) {
    case SyncStrategy::all_reduce: return "AllReduce";
    case SyncStrategy::reduce_to_root: return "ReduceToRoot";
    case SyncStrategy::no_sync: break;
  }
  return "NoSync";
}

SyncStrategy parse_sync_strategy(std::string_view name) {
  std::vector<std::string> names;
  for (SyncStrategy strategy : kStrategies) {
    if (to_string(strategy) == name) return strategy;
    names.emplace_back(to_string(strategy));
  }
  const std::optional<std::string> nearest = nearest_name(name, names);
  throw UsageError(fmt::format("there is no way to synchronise '{}'; there is: {}{}", name, fmt::join(names, ", "),
                               nearest ? fmt::format("; did you mean '{}'?", *nearest) : ""));
}

}  // namespace tutti
