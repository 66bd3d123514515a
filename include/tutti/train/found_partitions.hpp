// Partitions that a run does not name ("auto_partition"): found by what its nodes cost.
//
//   if (wants_partitions(run)) run = with_found_partitions(run, measure_node_costs(run, *data.train));
#pragma once

#include <tutti/train/node_costs.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

bool wants_partitions(const Run& run);

// The same run with partitions in place of "auto_partition", in its resolved file too: as balanced as can be, with what
// is moved between workers as work of both. A worker that has nothing to do then is warned of. A pure function.
Run with_found_partitions(const Run& run, const NodeCosts& costs);

}  // namespace tutti
