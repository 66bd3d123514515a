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

// One thread at a time calls it; another calls `make`.
template <typename T>
class Prefetch {
 public:
  using Make = std::function<T(std::int64_t number)>;

  explicit Prefetch(Make make, PrefetchOptions options = {})
      : make_(std::move(make)), ahead_(options.ahead), deadline_(options.deadline) {
    if (ahead_ == 0) throw UsageError("expected at least 1 to be made ahead, found 0");
    start_at(options.first);
  }
  // Waits for no more than the one that is being made.
  ~Prefetch() { stop(); }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  void start_at(std::int64_t first) {
    stop();
    ready_.clear();
    failure_ = nullptr;
    thread_ = std::jthread([this, first](const std::stop_token& stopped) { run(stopped, first); });
  }

  T next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline_, [&] { return !ready_.empty() || failure_; }))
      throw Error(fmt::format("the data is late: nothing came within {} s",
                              std::chrono::duration_cast<std::chrono::seconds>(deadline_).count()));
    if (ready_.empty()) std::rethrow_exception(failure_);
    T thing = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_one();
    return thing;
  }

 private:
  void run(const std::stop_token& stopped, std::int64_t number) {
    try {
      for (;; ++number) {
        {
          std::unique_lock lock(mutex_);
          if (!changed_.wait(lock, stopped, [&] { return ready_.size() < ahead_; })) return;
        }
        if (stopped.stop_requested()) return;
        T thing = make_(number);
        {
          const std::lock_guard lock(mutex_);
          ready_.push_back(std::move(thing));
        }
        changed_.notify_one();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_one();
  }

  void stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
  }

  Make make_;
  std::size_t ahead_;
  Duration deadline_;
  std::mutex mutex_;
  std::condition_variable_any changed_;  // there is one more, one less, or a failure
  std::deque<T> ready_;
  std::exception_ptr failure_;
  std::jthread thread_;
};

}  // namespace tutti
