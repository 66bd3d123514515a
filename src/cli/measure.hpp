// How to time a call that all ranks make together: one method for tutti and for the engines it is compared with.
//
//   CallTimer timer({.call = ..., .refill = ..., .agree = ..., .calls_per_filling = 200});   // on every rank
//   Plan plan = timer.plan(bytes, {.seconds = 0.5});
//   Timing timing = summarize(timer.take(plan), plan);                                       // rank 0's counts
//
// Every rank does the same things in the same order; only rank 0's clock is looked at. Large calls are timed one by
// one, small ones in batches, so that reading the clock does not show. What is told is the median.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tutti::cli {

// How long to measure one point.
struct Effort {
  double seconds = 0.5;
  std::uint64_t repetitions = 0;  // exactly so many, where not 0
};

// What one rank brings.
struct RankCalls {
  std::function<void()> call;
  // Gives this rank's array its first values again: repeated sums grow, and would end in infinities.
  std::function<void()> refill;
  // Gives every rank what rank 0 passed.
  std::function<std::uint64_t(std::uint64_t)> agree;
  std::uint64_t calls_per_filling = 2;  // at least 2
};

struct Plan {
  std::uint64_t repetitions = 0;
  std::uint64_t batch = 1;  // calls in one repetition
};

// Seconds per call.
struct Timing {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  std::uint64_t repetitions = 0;
  std::uint64_t batch = 1;
};

// Between the two nearest values, as most tools do it. `values` must not be empty.
inline double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

inline Timing summarize(const std::vector<double>& seconds, const Plan& plan) {
  return {median(seconds), percentile(seconds, 0.1), percentile(seconds, 0.9), seconds.size(), plan.batch};
}

class CallTimer {
 public:
  explicit CallTimer(RankCalls calls) : calls_(std::move(calls)) {}

  // Warms up, and from how long that takes settles how often to call. All ranks get rank 0's plan.
  Plan plan(std::uint64_t bytes, const Effort& effort) {
    const bool one_by_one = bytes >= kTimedOneByOne;
    const double seconds = time_batch(one_by_one ? 3 : 50);
    const double wanted_batch = one_by_one ? 1 : kBatchSeconds / seconds;
    const auto batch = static_cast<std::uint64_t>(
        std::clamp(wanted_batch, 1.0, std::min(kLargestBatch, static_cast<double>(calls_.calls_per_filling - 1))));
    const double wanted = effort.seconds / (seconds * static_cast<double>(batch));
    const auto repetitions = effort.repetitions != 0
                                 ? effort.repetitions
                                 : static_cast<std::uint64_t>(std::clamp(wanted, kFewestRepetitions, kMostRepetitions));
    return {calls_.agree(repetitions), calls_.agree(batch)};
  }

  // Seconds per call, one value per repetition.
  std::vector<double> take(const Plan& plan) {
    std::vector<double> seconds;
    seconds.reserve(plan.repetitions);
    start_anew();
    for (std::uint64_t i = 0; i < plan.repetitions; ++i) seconds.push_back(time_batch(plan.batch));
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::uint64_t kTimedOneByOne = 64 << 10;
  static constexpr double kBatchSeconds = 200e-6;
  static constexpr double kLargestBatch = 1000;
  static constexpr double kFewestRepetitions = 15;
  static constexpr double kMostRepetitions = 20000;

  // Not timed: the call after a filling finds every array in its own rank's cache, and waits for the slowest to fill.
  void start_anew() {
    calls_.refill();
    calls_.call();
    calls_left_ = calls_.calls_per_filling - 1;
  }

  double time_batch(std::uint64_t batch) {
    batch = std::min(batch, calls_.calls_per_filling - 1);
    if (calls_left_ < batch) start_anew();
    calls_left_ -= batch;
    const Clock::time_point begin = Clock::now();
    for (std::uint64_t i = 0; i < batch; ++i) calls_.call();
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    // A clock that did not move must not lead to infinities.
    return std::max(elapsed.count(), 1e-9) / static_cast<double>(batch);
  }

  RankCalls calls_;
  std::uint64_t calls_left_ = 0;
};

}  // namespace tutti::cli
