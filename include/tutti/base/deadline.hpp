// Until when a wait may last. Every wait in tutti has one.
//
//   Deadline deadline = Deadline::after(30s);
//   while (!done && !deadline.passed()) ...
#pragma once

#include <chrono>
#include <string>

namespace tutti {

using Duration = std::chrono::nanoseconds;

// How long a call waits for a peer that is alive and slow, unless it is told otherwise.
inline constexpr Duration kDefaultDeadline = std::chrono::minutes(10);

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A duration too long for the clock counts as the longest the clock can hold.
  static Deadline after(Duration duration) {
    const Clock::time_point now = Clock::now();
    if (duration > Clock::time_point::max() - now) return Deadline(Clock::time_point::max());
    return Deadline(now + duration);
  }

  bool passed() const { return Clock::now() >= when_; }

  // What is left, never below zero.
  Duration remaining() const {
    const Clock::time_point now = Clock::now();
    return now >= when_ ? Duration::zero() : std::chrono::duration_cast<Duration>(when_ - now);
  }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}

  Clock::time_point when_;
};

// "250 ms", "30 s", "10 min": for messages.
std::string to_string(Duration duration);

}  // namespace tutti
