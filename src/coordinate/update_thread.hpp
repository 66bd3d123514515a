// A bounded queue of updates, and a thread that takes them in their order: what both coordinators have in common.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/coordinator_run.hpp>

namespace tutti::detail {

template <typename Update>
class UpdateThread {
 public:
  using Merge = std::function<void(Update& newest, Update&& added)>;

  struct Options {
    std::size_t capacity = 64;
    std::function<void(Update&)> take = {};  // on the thread
    std::function<void()> finish = {};       // on the thread, where it was stopped
    Merge merge = {};                        // where the queue is full, in place of waiting
  };

  explicit UpdateThread(Options options) : shared_(std::make_shared<Shared>(std::move(options))) {}

  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // What is being taken is taken; what waits is dropped. A thread that hangs is left to itself.
  ~UpdateThread() {
    std::unique_lock lock(shared_->mutex);
    shared_->is_ending = true;
    shared_->has_work.notify_all();
    const bool has_ended =
        shared_->has_ended.wait_for(lock, kDefaultDeadline, [&] { return !shared_->run || shared_->run->has_ended(); });
    lock.unlock();
    if (!thread_.joinable()) return;
    if (has_ended)
      thread_.join();
    else
      thread_.detach();
  }

  // False where there is no room for so long.
  bool add(Update update, Duration wait) {
    std::unique_lock lock(shared_->mutex);
    Shared& its = *shared_;
    const auto has_room = [&] { return its.queue.size() < its.options.capacity; };
    if (!has_room() && its.options.merge) {
      its.options.merge(its.queue.back(), std::move(update));
      return true;
    }
    if (!its.has_room.wait_for(lock, wait, has_room)) return false;
    its.queue.push_back(std::move(update));
    ++its.added;
    its.has_work.notify_one();
    return true;
  }

  CoordinatorRun start() {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->run && !shared_->run->has_ended()) throw UsageError("it was started already");
    if (thread_.joinable()) thread_.join();
    shared_->run = std::make_shared<CoordinatorRun::State>();
    shared_->stop_after.reset();
    thread_ = std::thread([shared = shared_] { shared->serve(); });
    return CoordinatorRun(shared_->run);
  }

  // What was added up to now is taken first. Nothing where it is not running.
  void stop(Duration wait) {
    std::shared_ptr<CoordinatorRun::State> run;
    {
      const std::lock_guard lock(shared_->mutex);
      run = shared_->run;
      if (!run) return;
      if (!run->has_ended() && !shared_->stop_after) shared_->stop_after = shared_->added;
      shared_->has_work.notify_all();
    }
    CoordinatorRun(run).wait(wait);
  }

  bool is_running() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->run && !shared_->run->has_ended();
  }

  // Of those that wait.
  std::size_t clear() {
    const std::lock_guard lock(shared_->mutex);
    const std::size_t count = shared_->queue.size();
    shared_->taken += static_cast<std::int64_t>(count);
    shared_->queue.clear();
    shared_->has_room.notify_all();
    shared_->has_work.notify_all();
    return count;
  }

  // That wait, or are being taken.
  std::size_t pending() const {
    const std::lock_guard lock(shared_->mutex);
    return static_cast<std::size_t>(shared_->added - shared_->taken);
  }

 private:
  struct Shared {
    explicit Shared(Options its) : options(std::move(its)) {}

    void serve() {
      std::exception_ptr failure;
      try {
        while (serve_once()) {
        }
        if (options.finish && !ends_at_once()) options.finish();
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      run->end(failure);
      has_ended.notify_all();
    }

    bool ends_at_once() {
      const std::lock_guard lock(mutex);
      return is_ending;
    }

    // Whether there may be more to do.
    bool serve_once() {
      std::unique_lock lock(mutex);
      const auto is_through = [&] { return is_ending || (stop_after && taken >= *stop_after); };
      has_work.wait(lock, [&] { return is_through() || !queue.empty(); });
      if (is_through()) return false;
      Update update = std::move(queue.front());
      queue.pop_front();
      has_room.notify_one();
      lock.unlock();
      std::exception_ptr failure;
      try {
        options.take(update);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      ++taken;
      if (failure) std::rethrow_exception(failure);
      return true;
    }

    const Options options;
    std::mutex mutex;
    std::condition_variable has_work;
    std::condition_variable has_room;
    std::condition_variable has_ended;
    std::deque<Update> queue;
    std::int64_t added = 0;
    std::int64_t taken = 0;                  // or cleared
    std::optional<std::int64_t> stop_after;  // when so many are taken
    bool is_ending = false;
    std::shared_ptr<CoordinatorRun::State> run;
  };

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tutti::detail
