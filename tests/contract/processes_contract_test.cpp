// The contract, for what processes do over links, without an engine: every rank has a mesh of its own and is a thread
// of this process, so that the sanitizers see all of it.
#include <thread>
#include <vector>

#include <tutti/transport/processes.hpp>

#include "support/queue_links.hpp"
#include "transport_contract.hpp"

namespace tutti::testing {
namespace {

void run_meshes(int ranks, bool shared_memory, const std::function<void(Transport&)>& script) {
  auto wires = make_queue_links(ranks);
  std::vector<std::jthread> threads;
  for (Rank rank : all_ranks(ranks)) {
    threads.emplace_back([&, rank] {
      try {
        const std::unique_ptr<Transport> transport =
            join_processes({.rank = rank,
                            .wires = std::move(wires[static_cast<std::size_t>(rank.value)]),
                            .shared_memory = shared_memory},
                           Deadline::after(std::chrono::seconds(60)));
        script(*transport);
      } catch (const std::exception& error) {
        ADD_FAILURE() << to_string(rank) << " threw: " << error.what();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Processes, TransportContract,
    ::testing::Values(Backend{"Memory", [](int ranks, const auto& script) { run_meshes(ranks, true, script); }},
                      Backend{"Links", [](int ranks, const auto& script) { run_meshes(ranks, false, script); }}),
    [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace tutti::testing
