// How a training step is timed, by every engine alike; peers/ddp_peer.py does the same in Python.
//
//   std::vector<cli::Timing> timings = time_steps(0.5, {{.run = [&](std::uint64_t n) { for (...) loop.step(); }},
//   ...});
//
// Steps to warm up; then repetitions of many steps, as many as fit into the time. A repetition's figure is its mean,
// for a step may leave work to the next one; what is told is the median of the repetitions. Several take turns, a
// repetition each: what disturbs the machine for a second disturbs them alike.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "cli/measure.hpp"

namespace tutti::bench {

struct StepCalls {
  std::function<void(std::uint64_t)> run;  // so many steps; returns when all replicas are through
  // Where every replica is a process: gives all what the first one passed, so that all do as many steps.
  std::function<std::uint64_t(std::uint64_t)> agree = [](std::uint64_t of_first) { return of_first; };
};

namespace detail {

// One of those that take turns.
class TimedSteps {
 public:
  TimedSteps(double seconds, const StepCalls& calls) : calls_(calls) {
    constexpr std::uint64_t kFirstSteps = 3;
    constexpr double kWarmUpSeconds = 0.1;
    calls_.run(kFirstSteps);
    const double at_first = seconds_per_step(kFirstSteps);
    const double warm = seconds_per_step(steps_in(kWarmUpSeconds, at_first));
    plan_.batch = steps_in(seconds / static_cast<double>(plan_.repetitions), warm);
  }

  void repeat() { means_.push_back(seconds_per_step(plan_.batch)); }
  std::uint64_t repetitions() const { return plan_.repetitions; }
  cli::Timing timing() const { return cli::summarize(means_, plan_); }

 private:
  double seconds_per_step(std::uint64_t steps) const {
    const auto begin = std::chrono::steady_clock::now();
    calls_.run(steps);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    return std::max(elapsed.count(), 1e-9) / static_cast<double>(steps);
  }
  std::uint64_t steps_in(double time, double per_step) const {
    return calls_.agree(static_cast<std::uint64_t>(std::clamp(time / per_step, 1.0, 1e6)));
  }

  const StepCalls& calls_;
  cli::Plan plan_{.repetitions = 5, .batch = 1};
  std::vector<double> means_;
};

}  // namespace detail

inline std::vector<cli::Timing> time_steps(double seconds, const std::vector<StepCalls>& calls) {
  std::vector<detail::TimedSteps> timed;
  for (const StepCalls& one : calls) timed.emplace_back(seconds, one);
  for (std::uint64_t i = 0; i < timed.front().repetitions(); ++i) {
    for (detail::TimedSteps& one : timed) one.repeat();
  }
  std::vector<cli::Timing> timings;
  for (const detail::TimedSteps& one : timed) timings.push_back(one.timing());
  return timings;
}

}  // namespace tutti::bench
