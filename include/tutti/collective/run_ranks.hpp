// Runs a function on n ranks that are threads of this process.
//
//   run_ranks(4, [](Communicator& world) {
//     std::vector<float> gradients = compute(world.rank());
//     all_reduce(world, std::span(gradients), {.algorithm = Ring{}, .op = ReduceOp::mean});
//   });
//
// When one rank throws, the others' waits end at once with a PeerError that names it, and what it threw is rethrown
// here.
#pragma once

#include <functional>
#include <memory>

#include <tutti/collective/communicator.hpp>

namespace tutti {

struct RunRanksOptions {
  bool shared_memory = true;  // false: ranks exchange messages only, as processes would
  CommunicatorOptions communicator = {};
};

// Zero ranks or fewer is a UsageError.
void run_ranks(int ranks, const std::function<void(Communicator&)>& f, const RunRanksOptions& options = {});

// Runs it on one rank, of a world that already is. When it throws, the others' waits end with a PeerError that names
// the rank and says what it threw, and what it threw goes on to the caller.
void run_rank(std::unique_ptr<Transport> transport, const std::function<void(Communicator&)>& f,
              const CommunicatorOptions& options = {});

}  // namespace tutti
