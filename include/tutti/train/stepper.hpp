// What carries a run out step by step: every strategy that goes by steps is one, and so is a coordinator of one's own.
//
//   class Mine final : public Stepper { ... };      // computes; the loop around it does all else
//
// The loop asks for one step after the other, sets the rate of each by the run's schedule, and evaluates, keeps the
// best, stops early, writes checkpoints and tells events as the run file says. Everything is called on one thread, in
// the order: restore (of a run that goes on), describe, notes and warnings, begin; then for each step set_rate, step,
// and where they are due evaluate and save. With several processes all make the same calls, and rank 0 alone is heard.
//
// What a step throws ends the run: a UsageError or an Error with its sentence, after "step 12: ". Checkpoints stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/events.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/base/parameter_store.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/nn/step_span.hpp>
#include <tutti/train/evaluation.hpp>

namespace tutti {

struct StepResult {
  double loss = 0;
  std::int64_t rows = 0;
  event::StepTimes times = {};
  std::vector<NamedNumber> metrics = {};
  std::vector<NamedNumber> counts = {};    // what else there was of it
  std::vector<std::string> problems = {};  // that it went on in spite of
  std::vector<StepSpan> spans = {};        // of this process
  bool is_interrupted = false;             // on any process
};

// Carries out a run's steps, one by one. With a world, all processes make the same calls.
class Stepper {
 public:
  virtual ~Stepper() = default;

  // In a line, for people.
  virtual std::string describe() const = 0;
  // What else people should know before it begins, in lines.
  virtual std::vector<std::string> notes() const { return {}; }
  virtual std::vector<std::string> warnings() const { return {}; }
  // The first step is the one after so many.
  virtual void begin(std::int64_t steps_taken) = 0;
  // With the optimizer's own rate times a factor; returns the rate.
  virtual double set_rate(double factor) = 0;
  // `is_interrupted` where this one of several processes was asked to end the run: the result says it to all. A process
  // that is alone is asked after its step.
  virtual StepResult step(bool is_interrupted) = 0;
  virtual Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) = 0;
  // By clients, with rows of their own; nothing where there are none. Who could not is a sentence in `problems`.
  virtual std::optional<Evaluation> evaluate_clients(std::vector<std::string>& /*problems*/) { return std::nullopt; }
  // For checkpoints: on rank 0 all that the next step depends on.
  virtual void save(ParameterSet& arrays) = 0;
  virtual void restore(const ParameterSet& arrays) = 0;
  // What clients keep, who may be too many for memory: read when it is written, and restored array by array, before all
  // else. Their names begin so, and no others do.
  static constexpr std::string_view kOfClients = "client/";
  virtual std::vector<ArrayOnDemand> save_clients() { return {}; }
  virtual void restore_client(const ParameterLayout& /*layout*/, std::span<const std::byte> /*bytes*/) {}
};

}  // namespace tutti
