// Some steps of a run, on what an earlier stretch has left, which may have been of a run with other values: a phase, or
// a generation of a member of a population.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/train/phase.hpp>

#include "training.hpp"

namespace tutti::detail {

// How many steps an epoch of the run has.
std::int64_t steps_per_epoch(const Run& run, std::int64_t rows);

class Stretch {
 public:
  // `around`: its data, options, and the weights to begin with. Outlives this.
  Stretch(std::shared_ptr<const Run> run, const Training& around);

  const Run& run() const { return *run_; }
  Stepper& stepper() { return *stepper_; }
  const Stepper& stepper() const { return *stepper_; }

  // Everything, or weights and buffers alone; the optimizer begins anew, too, where it is of another kind.
  void go_on_from(const ParameterSet& state, bool with_optimizer);
  // What go_on_from takes; with a world, on rank 0.
  void save(ParameterSet& state);

  void begin(const PhaseSteps& steps, std::int64_t taken = 0);
  bool is_over() const { return taken_ == steps_.count; }
  // Sets the rate of the next step, which it returns.
  double set_rate();
  StepResult step(bool is_interrupted);

 private:
  std::shared_ptr<const Run> run_;
  Training training_;
  std::unique_ptr<Stepper> stepper_;
  PhaseSteps steps_;
  std::int64_t taken_ = 0;
};

// The weights and buffers of a state, or what else there is.
ParameterSet part_of_state(const ParameterSet& state, bool is_weights);

}  // namespace tutti::detail
