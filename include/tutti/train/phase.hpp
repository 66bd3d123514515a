// A stretch of a run in which some values of its file are others: the learning rate, the batch size, how many are
// dropped. A run with phases goes through them one after the other.
//
//   "phases": [{"epochs": 2, "set": {"optimizer.lr": 0.1}},
//              {"epochs": 1, "set": {"optimizer.lr": 0.01, "data.batch_size": 256}}]
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tutti/base/json.hpp>
#include <tutti/strategy/search_space.hpp>

namespace tutti {

struct RunPhase {
  std::int64_t epochs = 0;  // one of the two
  std::int64_t steps = 0;
  // In epochs, or else in steps, as the phase is: how much comes before it, for the order of rows and the schedule of
  // the learning rate, and how much there is in all; what the phases add up to, where it does not say.
  std::optional<std::int64_t> after = {};
  std::optional<std::int64_t> of = {};
  std::optional<std::uint64_t> seed = {};  // of first weights, the order of rows and what is drawn; otherwise the run's
  bool new_optimizer = false;              // it begins with a new one
  bool only_end = false;     // without `evaluate_every` it is evaluated at its end, and not after each epoch
  HyperParameters set = {};  // null: what stands there is left out
  friend bool operator==(const RunPhase&, const RunPhase&) = default;
};

std::vector<RunPhase> phases_from_json(const JsonValue& value);
nlohmann::ordered_json to_json(const std::vector<RunPhase>& phases);

// The steps of a phase: `count` from `first` on, of `total`.
struct PhaseSteps {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t total = 0;
  std::int64_t steps_per_epoch = 1;
};

// Of each, where an epoch of it has so many steps.
std::vector<PhaseSteps> steps_of(const std::vector<RunPhase>& phases, const std::vector<std::int64_t>& steps_per_epoch);

// Which epoch a step is in, and after which steps something is over.
//
//   const Calendar calendar(run.phases, steps_of(run.phases, steps_per_epoch));
//   if (calendar.is_end(step)) evaluate();
class Calendar {
 public:
  // Of a run that is one stretch.
  explicit Calendar(std::int64_t steps_per_epoch);
  Calendar(const std::vector<RunPhase>& phases, const std::vector<PhaseSteps>& steps);

  // Steps and epochs count from 1, through all phases.
  std::int64_t epoch_of(std::int64_t step) const;
  // Of an epoch or a phase.
  bool is_end(std::int64_t step) const;

 private:
  struct Part {
    std::int64_t before = 0;         // steps of the run
    std::int64_t epochs_before = 0;  // that have come to their end
    PhaseSteps steps = {};
    bool only_end = false;
  };

  const Part& part_of(std::int64_t step) const;

  std::vector<Part> parts_;  // the last goes on for ever
};

}  // namespace tutti
