#include <tutti/collective/run_ranks.hpp>

#include "support/mesh_world.hpp"
#include "support/worlds.hpp"

namespace tutti::testing {
namespace {

WorldKind kind_of(const std::string& name, const MeshWorld& world) {
  return {.name = name,
          .shared_memory = world.shared_memory,
          .ranks = {1, 2, 3, 5},
          .most_struck = 3,
          .run = [=](int ranks, const std::function<void(Communicator&)>& f, const CommunicatorOptions& options) {
            MeshWorld with_ranks = world;
            with_ranks.ranks = ranks;
            run_mesh_world(with_ranks,
                           [&](std::unique_ptr<Transport> transport) { run_rank(std::move(transport), f, options); });
          }};
}

}  // namespace

const std::vector<WorldKind>& world_kinds() {
  static const std::vector<WorldKind> kinds{kind_of("MeshMemory", {.shared_memory = true}),
                                            kind_of("MeshLinks", {.lend = true})};
  return kinds;
}

}  // namespace tutti::testing
