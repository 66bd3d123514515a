#include <tutti/sync/threaded_gradient_sync.hpp>

#include <exception>
#include <memory>

#include <fmt/format.h>
#include <tutti/transport/threads.hpp>

namespace tutti {

std::vector<ThreadedGradientSync> ThreadedGradientSync::new_workers(int count,
                                                                    const ThreadedGradientSyncOptions& options) {
  std::vector<ThreadedGradientSync> workers;
  for (std::unique_ptr<Transport>& transport : make_threads_world(count)) {
    workers.emplace_back(
        CollectiveGradientSync(Communicator(std::move(transport), {.deadline = options.deadline}), options.sync));
  }
  return workers;
}

void detail::run_workers(int count, const std::function<void(ThreadedGradientSync&)>& f,
                         const ThreadedGradientSyncOptions& options) {
  const auto work = [&](Communicator& world) {
    ThreadedGradientSync sync(CollectiveGradientSync(std::move(world), options.sync));
    try {
      f(sync);
    } catch (const std::exception& error) {
      sync.leave(fmt::format("threw: {}", error.what()));
      throw;
    } catch (...) {
      sync.leave("threw");
      throw;
    }
  };
  run_ranks(count, work, {.communicator = {.deadline = options.deadline}});
}

}  // namespace tutti
