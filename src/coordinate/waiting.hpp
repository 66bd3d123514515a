// Waits with a deadline of any length: what is too long for a clock is waited for an hour at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <tutti/base/deadline.hpp>

namespace tutti::detail {

// Whether `ready` became true in time.
template <typename Ready>
bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  while (!ready()) {
    if (deadline.passed()) return false;
    changed.wait_for(lock, std::min<Duration>(deadline.remaining(), std::chrono::hours(1)));
  }
  return true;
}

}  // namespace tutti::detail
