// A bounded queue of updates, and a thread that takes them in their order: what both coordinators have in common.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/coordinator_run.hpp>

#include "waiting.hpp"

namespace tutti::detail {

// Any thread may call any of these, the destructor while others wait for room included.
template <typename Update>
class UpdateThread {
 public:
  struct Options {
    std::size_t capacity = 64;
    std::string noun = "updates";          // for messages
    Duration deadline = kDefaultDeadline;  // of the destructor
    // On the thread. `settled` is how many of those that were added this one stands for, and becomes how many are
    // through with it: none, where it is kept for later. Where it throws the run ends, and as many are gone.
    std::function<void(Update& update, std::int64_t& settled)> take = {};
    // On the thread, when it was told to stop and all before is taken.
    std::function<void(std::int64_t& settled)> finish = {};
    // Drops what take() has kept, and returns how many.
    std::function<std::int64_t()> drop_kept = {};
    // Where the queue is full, in place of waiting.
    std::function<void(Update& newest, const Update& added)> merge = {};
  };

  explicit UpdateThread(Options options) : shared_(std::make_shared<Shared>(std::move(options))) {}

  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // What is being taken is taken; what waits is dropped, which the run ends with, and who waits for room gets an Error.
  // A thread that hangs for longer than the deadline is left to itself.
  ~UpdateThread() {
    std::unique_lock lock(shared_->mutex);
    Shared& its = *shared_;
    its.is_ending = true;
    its.has_work.notify_all();
    its.has_room.notify_all();
    const Deadline deadline = Deadline::after(its.options.deadline);
    const bool has_ended = wait(its.is_quiet, lock, deadline, [&] { return !its.is_running(); });
    wait(its.is_quiet, lock, deadline, [&] { return its.senders == 0; });
    lock.unlock();
    if (!thread_.joinable()) return;
    if (has_ended)
      thread_.join();
    else
      thread_.detach();
  }

  // An Error where there is no room for so long, and at once where nobody would make room, since the run has failed.
  void add(Update update, Duration patience) {
    const std::shared_ptr<Shared> shared = shared_;
    Shared& its = *shared;
    std::unique_lock lock(its.mutex);
    const Sender sender(its, lock);
    const auto has_room = [&] { return its.queue.size() < its.options.capacity; };
    while (!has_room() && its.options.merge) {
      if (its.merged_into_newest(lock, update)) return;
    }
    const bool in_time = its.wait_for_room(lock, Deadline::after(patience),
                                           [&] { return has_room() || its.is_ending || its.failure() != nullptr; });
    if (its.is_ending) throw Error("the coordinator has come to its end");
    if (!in_time) {
      throw Error(fmt::format(
          "{} {} wait already{}", its.options.capacity, its.options.noun,
          patience > Duration::zero() ? fmt::format(", and there was no room for {}", to_string(patience)) : ""));
    }
    if (!has_room()) {
      throw Error(fmt::format("{} {} wait already, and the run has ended: {}", its.options.capacity, its.options.noun,
                              text_of(its.failure())));
    }
    auto entry = std::make_shared<Entry>();
    entry->update = std::move(update);
    its.queue.push_back(std::move(entry));
    ++its.entries;
    ++its.added;
    its.has_work.notify_one();
  }

  CoordinatorRun start() {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->is_running()) throw UsageError("it was started already");
    if (thread_.joinable()) thread_.join();  // its run has ended: it holds no lock any more
    auto run = std::make_shared<CoordinatorRun::State>();
    thread_ = std::thread([shared = shared_] { shared->serve(); });
    shared_->server = thread_.get_id();
    shared_->run = std::move(run);
    shared_->stop_after.reset();
    return CoordinatorRun(shared_->run);
  }

  // What was added up to now is taken first. Nothing where it is not running, but that it rethrows what the run ended
  // with.
  void stop(Duration patience) {
    std::shared_ptr<CoordinatorRun::State> run;
    {
      const std::lock_guard lock(shared_->mutex);
      run = shared_->run;
      if (!run) return;
      if (shared_->is_running()) {
        if (shared_->server == std::this_thread::get_id())
          throw UsageError("stop() waits for the thread of the coordinator, and was called on it");
        shared_->stop_after = shared_->entries;
        shared_->has_work.notify_all();
      }
    }
    CoordinatorRun(run).wait(patience);
  }

  // Those that wait, or are kept. What is being taken is not undone.
  std::size_t clear() {
    std::deque<std::shared_ptr<Entry>> dropped;
    std::int64_t kept = 0;
    {
      const std::lock_guard lock(shared_->mutex);
      dropped = std::exchange(shared_->queue, {});
      if (shared_->options.drop_kept) kept = shared_->options.drop_kept();
      shared_->has_room.notify_all();
    }
    std::int64_t waiting = 0;
    for (const std::shared_ptr<Entry>& entry : dropped) waiting += entry->close();
    const std::lock_guard lock(shared_->mutex);
    shared_->entries_taken += std::ssize(dropped);
    shared_->settled += waiting + kept;
    shared_->has_work.notify_all();
    return static_cast<std::size_t>(waiting + kept);
  }

  // That wait, are being taken, or are kept.
  std::size_t pending() const {
    const std::lock_guard lock(shared_->mutex);
    return static_cast<std::size_t>(shared_->added - shared_->settled);
  }

 private:
  struct Entry {
    // How many were merged into it, which nothing is any more.
    std::int64_t close() {
      const std::lock_guard lock(mutex);
      is_closed = true;
      return count;
    }

    std::mutex mutex;  // held while something is merged into it; the other mutex may be taken meanwhile
    Update update = {};
    std::int64_t count = 1;
    bool is_closed = false;
  };

  struct Shared {
    static constexpr Duration kLooksUp = std::chrono::milliseconds(1);
    static constexpr std::size_t kLongQueue = 16;

    explicit Shared(Options its) : options(std::move(its)) {}

    // With the mutex held.
    bool is_running() const { return run && !run->has_ended(); }
    std::exception_ptr failure() const { return run ? run->failure() : nullptr; }

    // To wake somebody takes as long as a small update. So senders sleep until half of the queue is free, and look up
    // now and then where updates take longer.
    template <typename Ready>
    bool wait_for_room(std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
      while (!wait(has_room, lock, Deadline::after(std::min<Duration>(deadline.remaining(), kLooksUp)), ready)) {
        if (deadline.passed()) return ready();
      }
      return true;
    }

    // Large sets take their time, so others may go on meanwhile. False where the newest is taken by now.
    bool merged_into_newest(std::unique_lock<std::mutex>& lock, const Update& added_update) {
      const std::shared_ptr<Entry> newest = queue.back();
      lock.unlock();
      bool is_merged = false;
      {
        const std::lock_guard merging(newest->mutex);
        if (!newest->is_closed) {
          options.merge(newest->update, added_update);
          ++newest->count;
          const std::lock_guard counting(mutex);  // before anybody can take it
          ++added;
          is_merged = true;
        }
      }
      lock.lock();
      return is_merged;
    }

    void serve() {
      std::exception_ptr failed;
      std::unique_lock lock(mutex);
      const auto is_through = [&] { return stop_after && entries_taken >= *stop_after; };
      while (!failed) {
        has_work.wait(lock, [&] { return is_ending || is_through() || !queue.empty(); });
        if (is_ending) break;
        if (is_through()) {
          failed = finish(lock);
          if (is_through()) break;  // and nobody has asked for more meanwhile
        } else {
          failed = take_next(lock);
        }
      }
      run->end(failed ? failed : dropped());
      is_quiet.notify_all();
      has_room.notify_all();  // who waits for room is told
    }

    // With the mutex held: what a run ends with that nobody has stopped, where something was left.
    std::exception_ptr dropped() const {
      if (!is_ending || added == settled) return nullptr;
      return std::make_exception_ptr(Error(
          fmt::format("the coordinator came to its end before {} {} were through", added - settled, options.noun)));
    }

    std::exception_ptr finish(std::unique_lock<std::mutex>& lock) {
      if (!options.finish) return nullptr;
      lock.unlock();
      std::exception_ptr failed;
      std::int64_t through = 0;
      try {
        options.finish(through);
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      settled += through;
      return failed;
    }

    std::exception_ptr take_next(std::unique_lock<std::mutex>& lock) {
      std::shared_ptr<Entry> entry = std::move(queue.front());
      queue.pop_front();
      if (options.capacity < kLongQueue || queue.size() <= options.capacity / 2) has_room.notify_all();
      lock.unlock();
      const std::int64_t count = entry->close();
      std::exception_ptr failed;
      std::int64_t through = count;
      try {
        options.take(entry->update, through);
      } catch (...) {
        failed = std::current_exception();
      }
      entry = nullptr;  // large sets are freed while others go on
      lock.lock();
      ++entries_taken;
      settled += through;
      return failed;
    }

    const Options options;
    std::mutex mutex;
    std::condition_variable has_work;
    std::condition_variable has_room;
    std::condition_variable is_quiet;
    std::deque<std::shared_ptr<Entry>> queue;
    std::int64_t added = 0;
    std::int64_t settled = 0;  // nothing more is to be done with them
    // What is merged is in an entry that was there before.
    std::int64_t entries = 0;
    std::int64_t entries_taken = 0;
    std::optional<std::int64_t> stop_after;  // when so many are taken
    bool is_ending = false;
    int senders = 0;
    std::shared_ptr<CoordinatorRun::State> run;
    std::thread::id server;
  };

  // Who is within add(): an end waits for them.
  class Sender {
   public:
    Sender(Shared& its, std::unique_lock<std::mutex>& lock) : its_(its), lock_(lock) { ++its_.senders; }
    ~Sender() {
      if (!lock_.owns_lock()) lock_.lock();
      if (--its_.senders == 0) its_.is_quiet.notify_all();
    }
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

   private:
    Shared& its_;
    std::unique_lock<std::mutex>& lock_;
  };

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tutti::detail
