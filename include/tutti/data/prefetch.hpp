// Makes things on a thread of its own before they are asked for: the first, the second, and so on, in this order.
//
//   Prefetch<Picture> pictures([&](std::int64_t number) { return paint(number); }, {.ahead = 4});
//   Picture picture = pictures.next();     // 0, which may be there already
//   pictures.start_at(100);                // what was made ahead is thrown away
//
// Who waits for one longer than the deadline gets an Error. An exception ends the thread. It reaches the caller in
// place of the thing that could not be made, after all before it; asked again, the caller gets it again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>

namespace tutti {

struct PrefetchOptions {
  std::size_t ahead = 4;  // so many lie ready at most
  std::int64_t first = 0;
  Duration deadline = kDefaultDeadline;  // for the next one
};

// One thread at a time calls it; another calls `make`, which owns what it needs: where it comes back late, that thread
// has it for longer than the Prefetch lives.
template <typename T>
class Prefetch {
 public:
  using Make = std::function<T(std::int64_t number)>;

  explicit Prefetch(Make make, PrefetchOptions options = {})
      : make_(std::move(make)), ahead_(options.ahead), deadline_(options.deadline) {
    if (ahead_ == 0) throw UsageError("expected at least 1 to be made ahead, found 0");
    start_at(options.first);
  }
  // Waits for no more than the one that is being made, and no longer than the deadline.
  ~Prefetch() { stop(); }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  void start_at(std::int64_t first) {
    stop();
    shared_ = std::make_shared<Shared>();
    thread_ = std::jthread([shared = shared_, make = make_, ahead = ahead_, first](const std::stop_token& stopped) {
      run(*shared, make, ahead, first, stopped);
    });
  }

  T next() {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->changed.wait_for(lock, deadline_, [&] { return !shared_->ready.empty() || shared_->failure; })) {
      shared_->is_late = true;
      throw Error(fmt::format("the data is late: nothing came within {} s",
                              std::chrono::duration_cast<std::chrono::seconds>(deadline_).count()));
    }
    if (shared_->ready.empty()) std::rethrow_exception(shared_->failure);
    T thing = std::move(shared_->ready.front());
    shared_->ready.pop_front();
    lock.unlock();
    shared_->changed.notify_all();
    return thing;
  }

 private:
  // What the two threads share.
  struct Shared {
    std::mutex mutex;
    std::condition_variable_any changed;  // there is one more, one less, a failure, or the end
    std::deque<T> ready;
    std::exception_ptr failure;
    bool is_late = false;  // somebody has waited in vain
    bool has_ended = false;
  };

  static void run(Shared& shared, const Make& make, std::size_t ahead, std::int64_t first,
                  const std::stop_token& stopped) {
    std::exception_ptr failure;
    try {
      make_until(stopped, shared, make, ahead, first);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(shared.mutex);
    shared.failure = failure;
    shared.has_ended = true;
    shared.changed.notify_all();
  }

  static void make_until(const std::stop_token& stopped, Shared& shared, const Make& make, std::size_t ahead,
                         std::int64_t number) {
    for (;; ++number) {
      {
        std::unique_lock lock(shared.mutex);
        if (!shared.changed.wait(lock, stopped, [&] { return shared.ready.size() < ahead; })) return;
      }
      if (stopped.stop_requested()) return;
      T thing = make(number);
      {
        const std::lock_guard lock(shared.mutex);
        shared.ready.push_back(std::move(thing));
      }
      shared.changed.notify_all();
    }
  }

  // A thread that is late is left to itself.
  void stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    {
      std::unique_lock lock(shared_->mutex);
      const Duration patience = shared_->is_late ? Duration::zero() : deadline_;
      if (!shared_->changed.wait_for(lock, patience, [&] { return shared_->has_ended; })) return thread_.detach();
    }
    thread_.join();
  }

  Make make_;
  std::size_t ahead_;
  Duration deadline_;
  std::shared_ptr<Shared> shared_;
  std::jthread thread_;
};

}  // namespace tutti
