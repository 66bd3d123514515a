// Runs that are a run file with some values set otherwise: those of a phase, and those of a member of a population.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/base/json.hpp>
#include <tutti/strategy/search_space.hpp>
#include <tutti/train/phase.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

// A run file whose data comes from where that of another run does: files were looked into for that one, and are not
// again.
Run read_run_like(const JsonValue& value, const Run& like);

// With these values in it, and nothing where one is null.
JsonDocument with_values(const nlohmann::ordered_json& document, const HyperParameters& values);
// What is wrong with it, without the place in a text that nobody has seen.
std::string without_place(const UsageError& error);

// Or belongs to the run as a whole: its data, its strategy, its length.
bool may_change_between_phases(std::string_view path);
// Without phases.
Run run_of_phase(const Run& run, const RunPhase& phase);

// Those of a member, and null for each dimension that is not there.
HyperParameters all_values(const SearchSpace& space, const HyperParameters& values);
// Trained alone, by the inner strategy.
Run run_of_member(const Run& run, const HyperParameters& values);
// What a member's file is made of: the run's, with the inner strategy and nothing to search.
nlohmann::ordered_json document_of_member(const Run& run);

// Whether weights of the one fit into the other.
bool have_same_weights(const Run& one, const Run& other);
// Whether subgraphs of the one and the other are trained alike.
bool have_same_strategies(const Run& one, const Run& other);

// A UsageError at its place for a dimension whose values cannot be set, or whose values members cannot differ in.
void refuse_impossible_search(const JsonValue& search, const Run& run);

}  // namespace tutti::detail
