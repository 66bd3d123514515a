#include "support/process_world.hpp"
#include "support/worlds.hpp"

namespace tutti::testing {

const std::vector<WorldKind>& world_kinds() {
  static const std::vector<WorldKind> kinds{
      {.name = processes_share_memory() ? "SharedMemory" : "Sockets",
       .shared_memory = processes_share_memory(),
       .ranks = {1, 2, 3, 5},
       .every = 5 * kEveryWhereSanitized,
       .run = [](int ranks, const std::function<void(Communicator&)>& f, const CommunicatorOptions& options) {
         run_processes(ranks, [&](std::unique_ptr<Transport> transport) {
           Communicator world(std::move(transport), options);
           f(world);
         });
       }}};
  return kinds;
}

}  // namespace tutti::testing
