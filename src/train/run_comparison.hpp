// Where two run files differ, by path: a checkpoint's and the one that goes on from it, or those of several processes.
//
//   changes_since(before, now);               // {"optimizer.lr", "graph.nodes"}
//   refuse_other_runs(world, run);
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/train/run.hpp>

namespace tutti::detail {

// Both resolved. Changes that do not matter to what is learnt from here on are left out.
std::vector<std::string> changes_since(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now);

// A UsageError where scores of an earlier run could not be compared with those to come, or the schedule could not be
// told any more that led to one.
void refuse_other_population(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now);

// All processes call it. Where one has another run file than rank 0, all of them throw: that one an Error which says
// where they differ, the others ToldElsewhere.
void refuse_other_runs(Communicator& world, const Run& run);

}  // namespace tutti::detail
