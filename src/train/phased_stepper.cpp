// Runs with phases: each is carried out as a run of its own, on what the one before has left.
#include <utility>

#include <fmt/format.h>
#include <tutti/collective/parameter_sets.hpp>

#include "run_values.hpp"
#include "stretch.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

class PhasedStepper final : public Stepper {
 public:
  explicit PhasedStepper(const Training& training)
      : training_(training), phases_(training.run->phases), steps_(phase_steps(*training.run, training.data)) {
    refuse_rows_alone_in_phases();
    // A checkpoint at the end of a phase is of that one.
    std::int64_t before = 0;
    while (phase_ + 1 < phases_.size() && training.first_step() > before + steps_[phase_].count)
      before += steps_[phase_++].count;
    taken_before_ = training.first_step() - before;
    stretch_ = make_stretch(training_);
  }

  std::string describe() const override {
    return fmt::format("{} phases, each {}", phases_.size(), stretch_->stepper().describe());
  }
  std::vector<std::string> warnings() const override { return stretch_->stepper().warnings(); }

  void begin(std::int64_t) override { stretch_->begin(steps_[phase_], taken_before_); }

  double set_rate(double) override {
    if (stretch_->is_over()) begin_next_phase();
    return stretch_->set_rate();
  }

  StepResult step(bool is_interrupted) override { return stretch_->step(is_interrupted); }
  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    return stretch_->stepper().evaluate(rows);
  }
  void save(ParameterSet& arrays) override { stretch_->save(arrays); }
  void restore(const ParameterSet& arrays) override { stretch_->go_on_from(arrays, /*with_optimizer=*/true); }

 private:
  // Now, and not when they begin.
  void refuse_rows_alone_in_phases() const {
    for (std::size_t i = 0; i < phases_.size(); ++i) {
      try {
        refuse_rows_alone(run_of_phase(*training_.run, phases_[i]), training_.data.train->size());
      } catch (const UsageError& error) {
        throw UsageError(fmt::format("phases[{}]: {}", i, error.what()));
      }
    }
  }

  std::unique_ptr<Stretch> make_stretch(const Training& around) const {
    return std::make_unique<Stretch>(std::make_shared<const Run>(run_of_phase(*training_.run, phases_[phase_])),
                                     around);
  }

  void begin_next_phase() {
    ParameterSet left;
    stretch_->save(left);
    if (training_.options.world != nullptr) broadcast(*training_.options.world, left);
    ++phase_;
    stretch_.reset();
    const Training around{
        .run = training_.run, .data = training_.data, .events = training_.events, .options = training_.options};
    stretch_ = make_stretch(around);
    stretch_->go_on_from(left, !phases_[phase_].new_optimizer);
    stretch_->begin(steps_[phase_]);
  }

  const Training& training_;
  std::vector<RunPhase> phases_;
  std::vector<PhaseSteps> steps_;
  std::size_t phase_ = 0;
  std::int64_t taken_before_ = 0;  // steps of the phase, by the run that this one goes on from
  std::unique_ptr<Stretch> stretch_;
};

}  // namespace

std::vector<PhaseSteps> phase_steps(const Run& run, const DataSplits& data) {
  std::vector<std::int64_t> epochs;
  for (const RunPhase& phase : run.phases)
    epochs.push_back(steps_per_epoch(run_of_phase(run, phase), data.train->size()));
  return steps_of(run.phases, epochs);
}

std::unique_ptr<Stepper> make_phased_stepper(const Training& training) {
  return std::make_unique<PhasedStepper>(training);
}

}  // namespace tutti::detail
