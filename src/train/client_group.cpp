#include <tutti/train/client_group.hpp>

#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/options.hpp>
#include <tutti/train/run.hpp>

namespace tutti {
namespace {

constexpr IntegerRange kSomeSteps{.min = 1, .max = std::numeric_limits<std::int32_t>::max()};

ClientGroup client_group_from_json(const JsonValue& value) {
  if (!value.is_object()) throw value.expected(R"(a group of clients, as in {"count": 80, "tags": ["phone"]})");
  const Options options(value);
  ClientGroup group;
  if (const auto count = options.find("count")) group.count = count->integer({.min = 1, .max = 100'000'000});
  if (const auto tags = options.find("tags")) {
    for (const JsonValue& tag : tags->elements()) group.tags.push_back(tag.string());
  }
  constexpr NumberRange kSpeed{.min = 0, .min_excluded = true};
  constexpr NumberRange kProbability{.min = 0, .max = 1};
  if (const auto speed = options.find("speed")) group.speed = distribution_from_json(*speed, kSpeed);
  if (const auto dropout = options.find("dropout")) group.dropout = distribution_from_json(*dropout, kProbability);
  if (const auto failure = options.find("failure")) group.failure = distribution_from_json(*failure, kProbability);
  group.update_factor = options.number("update_factor", {.min = -1e6, .max = 1e6}, group.update_factor);
  const auto epochs = options.find("epochs");
  const auto steps = options.find("steps");
  if (epochs && steps) throw steps->error("there are epochs, too; expected one of the two");
  if (epochs) group.local = {.epochs = epochs->integer(kSomeSteps)};
  if (steps) group.local = {.steps = steps->integer(kSomeSteps)};
  if (const auto rows = options.find("batch_size")) group.batch_size = rows->integer(kSomeSteps);
  if (const auto rule = options.find("optimizer")) group.optimizer = optimizer_from_json(*rule);
  if (const auto schedule = options.find("schedule")) group.schedule = schedule_from_json(*schedule);
  options.refuse_other_keys({});
  return group;
}

}  // namespace

std::vector<ClientGroup> client_groups_from_json(const JsonValue& list, std::int64_t clients) {
  std::vector<ClientGroup> groups;
  std::int64_t counted = 0;
  for (const JsonValue& value : list.elements()) {
    if (!groups.empty() && groups.back().count == 0)
      throw value.error("the group before this one has no count, and so has all clients that are left");
    groups.push_back(client_group_from_json(value));
    counted += groups.back().count;
  }
  if (groups.empty()) throw list.expected("at least one group of clients");
  const bool has_rest = groups.back().count == 0;
  if (has_rest) {
    groups.back().count = clients - counted;
    groups.back().is_rest = true;
  }
  if (has_rest ? groups.back().count < 1 : counted != clients)
    throw list.error(fmt::format("the groups have {} clients{}, and num_clients is {}", counted,
                                 has_rest ? " without the last, which has the rest" : "", clients));
  return groups;
}

nlohmann::ordered_json to_json(const ClientGroup& group) {
  nlohmann::ordered_json json;
  // Otherwise num_clients could not be changed without it.
  if (!group.is_rest) json["count"] = group.count;
  json.update({{"tags", group.tags},
               {"speed", to_json(group.speed)},
               {"dropout", to_json(group.dropout)},
               {"failure", to_json(group.failure)},
               {"update_factor", group.update_factor}});
  if (group.local && group.local->steps > 0) json["steps"] = group.local->steps;
  if (group.local && group.local->steps == 0) json["epochs"] = group.local->epochs;
  if (group.batch_size) json["batch_size"] = *group.batch_size;
  if (group.optimizer) json["optimizer"] = to_json(*group.optimizer);
  if (group.schedule) json["schedule"] = to_json(*group.schedule);
  return json;
}

}  // namespace tutti
