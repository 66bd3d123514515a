#include "support/mesh_world.hpp"

#include <exception>
#include <thread>
#include <vector>

#include <tutti/transport/processes.hpp>

#include "support/queue_links.hpp"

namespace tutti::testing {

void run_mesh_world(const MeshWorld& world, const std::function<void(std::unique_ptr<Transport>)>& rank) {
  auto wires = make_queue_links(world.ranks, world.lend);
  std::vector<std::exception_ptr> thrown(wires.size());
  std::vector<std::exception_ptr> because_of_others(wires.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < wires.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          rank(join_processes(
              {.rank = Rank{static_cast<int>(i)}, .wires = std::move(wires[i]), .shared_memory = world.shared_memory},
              Deadline::after(std::chrono::seconds(60))));
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

}  // namespace tutti::testing
