// A coordinator that was started: something to wait on.
//
//   CoordinatorRun run = coordinator.start();
//   ...
//   coordinator.stop();                        // or, on another thread:
//   run.wait();                                // rethrows what ended it, where that was a failure
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include <tutti/base/deadline.hpp>

namespace tutti {

// May be copied, and outlive the coordinator. Any thread may wait.
class CoordinatorRun {
 public:
  class State {
   public:
    void end(std::exception_ptr failure);
    bool has_ended() const;
    // What it failed with; null where it did not, or goes on.
    std::exception_ptr failure() const;
    // False where it goes on for longer than that. Rethrows what it failed with.
    bool wait(Duration wait) const;

   private:
    mutable std::mutex mutex_;
    mutable std::condition_variable ends_;
    bool has_ended_ = false;
    std::exception_ptr failure_;
  };

  explicit CoordinatorRun(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  bool has_ended() const { return state_->has_ended(); }

  // Until it has been stopped and all that was added before is applied. An Error where that takes longer; what the
  // coordinator failed with, such as an update rule that threw, or that it has come to its end before all was applied.
  void wait(Duration deadline = kDefaultDeadline) const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace tutti
