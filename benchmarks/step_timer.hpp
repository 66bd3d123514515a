// How a training step is timed, by every engine alike; peers/ddp_peer.py does the same in Python.
//
//   cli::Timing timing = time_steps(0.5, {.run = [&](std::uint64_t n) { for (...) loop.step(); }});
//
// Steps to warm up; then repetitions of many steps, as many as fit into the time. A repetition's figure is its mean,
// for a step may leave work to the next one; what is told is the median of the repetitions.
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

inline cli::Timing time_steps(double seconds, const StepCalls& calls) {
  constexpr std::uint64_t kFirstSteps = 3;
  constexpr double kWarmUpSeconds = 0.1;
  constexpr std::uint64_t kRepetitions = 5;
  const auto seconds_per_step = [&](std::uint64_t steps) {
    const auto begin = std::chrono::steady_clock::now();
    calls.run(steps);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    return std::max(elapsed.count(), 1e-9) / static_cast<double>(steps);
  };
  const auto steps_in = [&](double time, double per_step) {
    return calls.agree(static_cast<std::uint64_t>(std::clamp(time / per_step, 1.0, 1e6)));
  };
  calls.run(kFirstSteps);
  const double at_first = seconds_per_step(kFirstSteps);
  const double warm = seconds_per_step(steps_in(kWarmUpSeconds, at_first));
  const cli::Plan plan{kRepetitions, steps_in(seconds / kRepetitions, warm)};
  std::vector<double> means;
  for (std::uint64_t i = 0; i < plan.repetitions; ++i) means.push_back(seconds_per_step(plan.batch));
  return cli::summarize(means, plan);
}

}  // namespace tutti::bench
