// Parameter sets that travel between ranks, with their names, shapes and types.
//
//   broadcast(world, set);                                     // everybody's becomes that of rank 0
//   std::vector<ParameterSet> all = gather(world, mine);       // on rank 0, by rank; elsewhere there is none
#pragma once

#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/collective/collectives.hpp>
#include <tutti/collective/communicator.hpp>

namespace tutti {

void broadcast(Communicator& world, ParameterSet& set, Rank root = Rank{0});

// Sets may differ from rank to rank.
std::vector<ParameterSet> gather(Communicator& world, const ParameterSet& mine, const RootOptions& options = {});

}  // namespace tutti
