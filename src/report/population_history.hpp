// What became of each member of a population in each generation, as population.jsonl tells it.
//
//   PopulationHistory history{.score_name = "validation accuracy", .higher_is_better = true};
//   while (std::getline(file, line)) history.records.push_back(population_record(line).value());
//   const auto origins = origins_of(history);
//   const auto ancestors = ancestors_of(*best_of(history), origins);
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::detail {

struct MemberAt {
  std::int64_t generation = 0;  // from 1 on
  std::int64_t member = 0;      // from 0 on
  friend auto operator<=>(const MemberAt&, const MemberAt&) = default;
};

struct PopulationRecord {
  MemberAt at;
  std::optional<double> score = {};                                        // none where it has failed
  std::string failure = {};                                                // then why
  std::optional<MemberAt> parent = {};                                     // whose weights it went on with
  std::vector<std::pair<std::string, std::string>> hyper_parameters = {};  // by path, each with the text of its JSON
};

struct PopulationHistory {
  std::string score_name = {};
  bool higher_is_better = true;
  std::vector<PopulationRecord> records = {};  // in the order in which they were evaluated
};

// Nothing where the line is no whole record. One that took over hyper-parameters alone went on with its own weights.
std::optional<PopulationRecord> population_record(std::string_view line);

// Of each record the one that it went on from: its parent, or else itself a generation before. None of the first ones,
// and where that is not among those before it.
std::vector<std::optional<std::size_t>> origins_of(const PopulationHistory& history);

// The record with the best score; of several the first.
std::optional<std::size_t> best_of(const PopulationHistory& history);

// The record itself and what it goes back to, the oldest first.
std::vector<std::size_t> ancestors_of(std::size_t record, const std::vector<std::optional<std::size_t>>& origins);

}  // namespace tutti::detail
