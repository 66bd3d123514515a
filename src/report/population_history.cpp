#include "population_history.hpp"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/json.hpp>

namespace tutti::detail {
namespace {

MemberAt member_at(const JsonValue& value) {
  return {.generation = value.at("generation").integer({.min = 1}), .member = value.at("member").integer({.min = 0})};
}

bool has_copied_weights(const JsonValue& record) {
  const auto copied = record.find("copied");
  return !copied ||
         std::ranges::any_of(copied->elements(), [](const JsonValue& part) { return part.string() == "weights"; });
}

}  // namespace

std::optional<PopulationRecord> population_record(std::string_view line) {
  try {
    const JsonValue value = JsonDocument::parse(line, "population.jsonl").root();
    PopulationRecord record{.at = member_at(value)};
    if (const JsonValue score = value.at("score"); !score.is_null()) record.score = score.number();
    if (const auto failure = value.find("failure")) record.failure = failure->string();
    if (const auto parent = value.find("parent"); parent && !parent->is_null() && has_copied_weights(value))
      record.parent = member_at(*parent);
    const JsonValue values = value.at("hyper_parameters");
    for (const std::string& path : values.keys())
      record.hyper_parameters.emplace_back(path, values.at(path).raw().dump());
    return record;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::vector<std::optional<std::size_t>> origins_of(const PopulationHistory& history) {
  std::map<MemberAt, std::size_t> before;
  std::vector<std::optional<std::size_t>> origins(history.records.size());
  for (std::size_t i = 0; i < origins.size(); ++i) {
    const PopulationRecord& record = history.records[i];
    const auto found = before.find(
        record.parent.value_or(MemberAt{.generation = record.at.generation - 1, .member = record.at.member}));
    if (found != before.end()) origins[i] = found->second;
    before.emplace(record.at, i);
  }
  return origins;
}

std::optional<std::size_t> best_of(const PopulationHistory& history) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < history.records.size(); ++i) {
    const std::optional<double>& score = history.records[i].score;
    if (!score) continue;
    if (!best ||
        (history.higher_is_better ? *score > *history.records[*best].score : *score < *history.records[*best].score))
      best = i;
  }
  return best;
}

std::vector<std::size_t> ancestors_of(std::size_t record, const std::vector<std::optional<std::size_t>>& origins) {
  std::vector<std::size_t> line{record};
  while (const std::optional<std::size_t>& origin = origins[line.back()]) line.push_back(*origin);
  std::ranges::reverse(line);
  return line;
}

}  // namespace tutti::detail
