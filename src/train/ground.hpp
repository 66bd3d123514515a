// What threads stand on that is their caller's, and goes when he does: a world, its transport. Who waits for others on
// it has a deadline, so the caller waits for him. Who computes may never come back: he steps off, and where he was
// given up meanwhile, finds it gone.
//
//   const Ground::Stay stay(ground);                     // each thread
//   output = ground.aside([&] { return net(rows); });    // throws where it was given up
//   ground.give_up(deadline);                            // the caller, before he ends
#pragma once

#include <condition_variable>
#include <mutex>

#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>

namespace tutti::detail {

class Ground {
 public:
  class Stay {
   public:
    explicit Stay(Ground& ground) : ground_(ground) { ground_.step_on(); }
    ~Stay() { ground_.step_off(); }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    Ground& ground_;
  };

  template <typename Work>
  void aside(const Work& work) {
    step_off();
    try {
      work();
    } catch (...) {
      step_on();
      throw;
    }
    step_on();
    if (is_gone()) throw Error("the others have ended");
  }

  bool is_gone() const {
    const std::lock_guard lock(mutex_);
    return is_gone_;
  }

  // Once nobody stands on it.
  void give_up(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, deadline.remaining(), [&] { return standing_ == 0; });
    is_gone_ = true;
  }

 private:
  void step_on() {
    const std::lock_guard lock(mutex_);
    ++standing_;
  }
  void step_off() {
    {
      const std::lock_guard lock(mutex_);
      --standing_;
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int standing_ = 0;
  bool is_gone_ = false;
};

}  // namespace tutti::detail
