// Workers that are threads of this process.
//
//   run_parallel_workers(4, [&](ThreadedGradientSync& sync) { train(shards[sync.worker_id()], sync); });
//
//   std::vector<ThreadedGradientSync> workers = ThreadedGradientSync::new_workers(2);     // or threads of one's own
//
// A round: each brings its gradients, and all get the mean once the last has come, folded in the workers' order: the
// bits do not depend on who came first. A handle that is destroyed leaves, and whoever waits for it hears so at once.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/sync/collective_gradient_sync.hpp>

namespace tutti {

struct ThreadedGradientSyncOptions {
  CollectiveGradientSyncOptions sync = {};
  // How long a round waits for workers that are alive and slow.
  Duration deadline = kDefaultDeadline;
};

class ThreadedGradientSync final : public GradientSync {
 public:
  // One for each worker. A UsageError where there are none.
  static std::vector<ThreadedGradientSync> new_workers(int count, const ThreadedGradientSyncOptions& options = {});

  explicit ThreadedGradientSync(CollectiveGradientSync sync) : sync_(std::move(sync)) {}

  void sync_gradients(Array gradients) override { sync_.sync_gradients(gradients); }
  void sync_buffers(GradientBuffers& gradients) override { sync_.sync_buffers(gradients); }
  void sync_exactly(Array numbers) override { sync_.sync_exactly(numbers); }
  bool is_distributed() const override { return sync_.is_distributed(); }
  int num_workers() const override { return sync_.num_workers(); }
  int worker_id() const { return sync_.worker_id(); }
  GradientCompressor& compressor() { return sync_.compressor(); }
  void leave(std::string_view why) { sync_.leave(why); }

 private:
  CollectiveGradientSync sync_;
};

namespace detail {
void run_workers(int count, const std::function<void(ThreadedGradientSync&)>& f,
                 const ThreadedGradientSyncOptions& options);
}

// Runs f(ThreadedGradientSync&) on so many threads, and returns what each returned, by worker. When one throws, the
// others' rounds end with a PeerError that says who and what, and what it threw is rethrown here.
template <typename F>
auto run_parallel_workers(int count, F&& f, const ThreadedGradientSyncOptions& options = {}) {
  using Result = std::invoke_result_t<F&, ThreadedGradientSync&>;
  if constexpr (std::is_void_v<Result>) {
    detail::run_workers(count, std::ref(f), options);
  } else {
    std::vector<Result> results(static_cast<std::size_t>(std::max(count, 0)));
    detail::run_workers(
        count, [&](ThreadedGradientSync& sync) { results[static_cast<std::size_t>(sync.worker_id())] = f(sync); },
        options);
    return results;
  }
}

}  // namespace tutti
