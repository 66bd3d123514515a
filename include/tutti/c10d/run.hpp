// The same program as threads and as processes.
//
//   int main() {
//     tutti::c10d::run([](tutti::Communicator& world) { all_reduce(world, gradients); }, {.threads = 4});
//   }
//
// Started by tutti launch, torchrun, mpirun or srun, this process is one rank of a job, and the function runs once,
// with the others as peers. Started alone, it runs on `threads` ranks, threads of this process.
#pragma once

#include <functional>

#include <tutti/c10d/join.hpp>
#include <tutti/collective/communicator.hpp>

namespace tutti::c10d {

struct RunOptions {
  int threads = 1;        // where nobody started several processes
  JoinOptions join = {};  // where somebody did
  CommunicatorOptions communicator = {};
};

// What a rank's function throws goes on to the caller; the others' waits end with a PeerError that names the rank.
void run(const std::function<void(Communicator&)>& f, const RunOptions& options = {});

}  // namespace tutti::c10d
