#include "support/mesh_world.hpp"

#include <exception>
#include <thread>
#include <vector>

#include <tutti/transport/folder.hpp>
#include <tutti/transport/processes.hpp>

#include "support/queue_links.hpp"
#include "support/scratch_folder.hpp"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;

constexpr Duration kMeeting = 60s;

using Script = std::function<void(std::unique_ptr<Transport>)>;

void run_joined(int ranks, const std::function<std::unique_ptr<Transport>(Rank)>& join, const Script& script) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> because_of_others(thrown.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < thrown.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          script(join(Rank{static_cast<int>(i)}));
        } catch (const PeerError&) {
          because_of_others[i] = std::current_exception();
        } catch (...) {
          thrown[i] = std::current_exception();
        }
      });
    }
  }
  thrown.insert(thrown.end(), because_of_others.begin(), because_of_others.end());
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

}  // namespace

void run_mesh_world(const MeshWorld& world, const Script& script) {
  if (world.folder) {
    const ScratchFolder scratch;
    const auto join = [&](Rank rank) {
      return join_folder({.folder = scratch / "job", .rank = rank, .size = world.ranks, .deadline = kMeeting});
    };
    run_joined(world.ranks, join, script);
    EXPECT_EQ(scratch.entries(), std::vector<std::string>{}) << "something is left in the folder";
    return;
  }
  auto wires = make_queue_links(world.ranks, world.lend);
  const auto join = [&](Rank rank) {
    return join_processes({.rank = rank,
                           .wires = std::move(wires[static_cast<std::size_t>(rank.value)]),
                           .shared_memory = world.shared_memory},
                          Deadline::after(kMeeting));
  };
  run_joined(world.ranks, join, script);
}

}  // namespace tutti::testing
