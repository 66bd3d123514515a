// How the learning rate changes over a run: a factor for each step, which the optimizer's own rate is multiplied by.
//
//   const Schedule schedule = schedule_from_json(run.at("schedule"));       // {"name": "cosine", "warmup": 100}
//   const double factor = rate_factor(schedule, {.step = 250, .steps = 1000, .steps_per_epoch = 100});
//
// In JSON a name alone, or an object with its options. docs/run_file.md has all of them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>

namespace tutti {
namespace schedule {

struct Constant {
  friend bool operator==(const Constant&, const Constant&) = default;
};

// After so many epochs each, times a factor.
struct Step {
  std::int64_t every = 1;
  double factor = 0.1;
  friend bool operator==(const Step&, const Step&) = default;
};

// Down along half a wave, to this share of the rate.
struct Cosine {
  double to = 0;
  friend bool operator==(const Cosine&, const Cosine&) = default;
};

// Straight down, to this share.
struct Linear {
  double to = 0;
  friend bool operator==(const Linear&, const Linear&) = default;
};

// Up from a share of the rate for the first part of the run, then down to another (Smith, Topin: "Super-convergence",
// 2018); both along half a wave. The optimizer's rate is the peak.
struct OneCycle {
  double rise = 0.3;  // this share of the run
  double from = 1.0 / 25;
  double to = 1e-4 / 25;
  friend bool operator==(const OneCycle&, const OneCycle&) = default;
};

using Kind = std::variant<Constant, Step, Cosine, Linear, OneCycle>;

}  // namespace schedule

struct Schedule {
  schedule::Kind kind = schedule::Constant{};
  std::int64_t warmup = 0;  // steps in which the rate rises from nothing, in a straight line; the rest is the kind's
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// Steps count from 0: which one is about to be taken, of how many.
struct ScheduleStep {
  std::int64_t step = 0;
  std::int64_t steps = 1;
  std::int64_t steps_per_epoch = 1;
};

double rate_factor(const Schedule& schedule, const ScheduleStep& at);

Schedule schedule_from_json(const JsonValue& value);
nlohmann::ordered_json to_json(const Schedule& schedule);

}  // namespace tutti
