// The contract, for what processes do over links, without an engine: every rank has a mesh of its own and is a thread
// of this process, so that the sanitizers see all of it.
#include "support/mesh_world.hpp"
#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

Backend backend(const std::string& name, const MeshWorld& world) {
  return {name, Locality::same_host, [world](int ranks, const auto& script) {
            MeshWorld with_ranks = world;
            with_ranks.ranks = ranks;
            run_mesh_world(with_ranks, [&](const std::unique_ptr<Transport>& transport) { script(*transport); });
          }};
}

INSTANTIATE_TEST_SUITE_P(Processes, TransportContract,
                         ::testing::Values(backend("Memory", {.shared_memory = true}), backend("Links", {}),
                                           backend("LendingLinks", {.lend = true}),
                                           backend("Folder", {.folder = true})),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace tutti::testing
