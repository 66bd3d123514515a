#include <tutti/c10d/run.hpp>

#include <tutti/collective/run_ranks.hpp>

namespace tutti::c10d {

void run(const std::function<void(Communicator&)>& f, const RunOptions& options) {
  JoinOptions how = options.join;
  if (!how.place) how.place = discover_place();
  if (!how.place) {
    return run_ranks(options.threads, f, {.shared_memory = how.shared_memory, .communicator = options.communicator});
  }
  run_rank(join(how), f, options.communicator);
}

}  // namespace tutti::c10d
