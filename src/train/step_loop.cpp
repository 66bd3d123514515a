// The loop of runs that go step by step.
#include <algorithm>
#include <exception>
#include <new>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/nn/blas.hpp>

#include "span_gathering.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

using Reason = event::RunEnded::Reason;

class StepLoop {
 public:
  StepLoop(Training& training, Stepper& stepper)
      : training_(training),
        run_(*training.run),
        stepper_(stepper),
        best_(best_options(run_), best_before(training)),
        spans_(training),
        calendar_(run_.phases.empty() ? Calendar(training.steps_per_epoch)
                                      : Calendar(run_.phases, phase_steps(run_, training.data))),
        step_(training.first_step()) {
    // What is not trained with tells the best: rows for validation, or else those to test with.
    if (training.data.validation) splits_.push_back({"validation", training.data.validation});
    if (training.data.test) splits_.push_back({"test", training.data.test});
    if (training.folder) checkpoints_.emplace(training.folder->checkpoints(), run_.checkpoints);
  }

  void run() {
    stepper_.begin(step_);
    Reason reason = Reason::finished;
    if (step_ < training_.steps && is_hopeless()) reason = Reason::stopped_early;
    while (step_ < training_.steps && reason == Reason::finished) {
      bool is_interrupted = take_step();
      const bool is_last = step_ == training_.steps;
      bool is_best = false;
      if (is_last || is_due(run_.train.evaluate_every)) is_best = evaluate();
      const bool ends = is_last || is_interrupted || is_hopeless();
      const bool is_kept = ends || is_due(checkpoint_every()) || (is_best && run_.checkpoints.keep_best);
      if (is_kept) write_checkpoint();
      // Whoever is alone is asked once what comes of the step is done, so that no other one is begun in vain.
      if (training_.is_alone() && is_wanted_to_end()) is_interrupted = true;
      if (is_interrupted && !is_kept) write_checkpoint();
      if (!is_last && is_interrupted)
        reason = Reason::interrupted;
      else if (!is_last && ends)
        reason = Reason::stopped_early;
    }
    if (training_.options.trace) spans_.flush();
    training_.result.reason = reason;
    training_.result.step = step_;
    training_.result.seconds = training_.seconds();
    training_.result.best = best_.state();
  }

 private:
  struct Split {
    std::string name;
    std::shared_ptr<const Dataset> rows;
  };

  static BestState best_before(const Training& training) {
    if (training.checkpoint) return training.checkpoint->state.best;
    return {.of = training.best_of()};
  }

  static BestOptions best_options(const Run& run) {
    return {.higher_is_better = is_higher_better(run),
            .min_change = run.train.early_stopping ? run.train.early_stopping->min_change : 0};
  }

  // So many steps, or the end of an epoch or of a phase.
  bool is_due(std::int64_t every) const { return every > 0 ? step_ % every == 0 : calendar_.is_end(step_); }
  // No better for as long as the run has patience.
  bool is_hopeless() const {
    return run_.train.early_stopping && best_.evaluations_since_progress() >= run_.train.early_stopping->patience;
  }
  std::int64_t checkpoint_every() const {
    return run_.checkpoints.every > 0 ? run_.checkpoints.every : run_.train.evaluate_every;
  }
  // A step whose rate is 0 is lost among many; a round is all that clients do. So the schedule ends after the last one.
  std::int64_t scheduled_steps() const {
    return std::holds_alternative<strategy::Federated>(run_.graph.effective_strategy()) ? training_.steps + 1
                                                                                        : training_.steps;
  }
  std::int64_t epoch() const { return calendar_.epoch_of(step_); }

  void tell(const Event& event) const {
    if (training_.speaks()) training_.events.tell(event);
  }

  bool is_wanted_to_end() const { return training_.options.is_interrupted && training_.options.is_interrupted(); }

  // True where somebody wants the run to end: processes that take steps together agree about it in the step.
  bool take_step() {
    const double rate = stepper_.set_rate(rate_factor(
        run_.schedule, {.step = step_, .steps = scheduled_steps(), .steps_per_epoch = training_.steps_per_epoch}));
    const bool is_interrupted = !training_.is_alone() && is_wanted_to_end();
    StepResult result;
    try {
      result = stepper_.step(is_interrupted);
    } catch (const PeerError&) {
      throw;
    } catch (const Error& error) {
      fail(error.what());
    } catch (const c10::Error& error) {
      fail(error.what_without_backtrace());
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // of a user's
      fail(error.what());
    } catch (...) {
      fail("what was thrown is no std::exception");
    }
    ++step_;
    if (training_.options.trace) spans_.add(result.spans);
    tell(event::StepEnded{.step = step_,
                          .epoch = epoch(),
                          .seconds = training_.seconds(),
                          .loss = result.loss,
                          .lr = rate,
                          .rows = result.rows,
                          .times = result.times,
                          .metrics = std::move(result.metrics),
                          .counts = std::move(result.counts)});
    for (const std::string& problem : result.problems) tell(event::Warned{problem});
    return result.is_interrupted;
  }

  // Where the world is whole, all processes have failed alike: one tells. But nobody knows that of a coordinator.
  [[noreturn]] void fail(const std::string& why) const {
    const std::string line = why.substr(0, why.find('\n'));
    const std::string& unit = training_.result.unit;
    const std::string place = fmt::format("{} {}: ", unit, step_ + 1);
    const std::string sentence = line.starts_with(place) ? line : place + line;
    const bool is_alike = !std::holds_alternative<strategy::Custom>(run_.graph.effective_strategy());
    if (is_alike && !training_.speaks() && !training_.options.world->broken()) throw ToldElsewhere(sentence);
    throw Error(sentence);
  }

  bool evaluate() {
    bool has_best = false;
    const auto take = [&](const std::string& split, const Evaluation& evaluation, bool is_judge) {
      const bool is_best = is_judge && best_.take(watched(evaluation), step_);
      has_best |= is_best;
      tell(event::EvaluationEnded{.step = step_,
                                  .epoch = epoch(),
                                  .seconds = training_.seconds(),
                                  .split = split,
                                  .rows = evaluation.rows,
                                  .loss = evaluation.loss,
                                  .metrics = evaluation.metrics,
                                  .is_best = is_best});
    };
    const bool by_clients = training_.is_judged_by_clients();
    for (std::size_t i = 0; i < splits_.size(); ++i)
      take(splits_[i].name, stepper_.evaluate(splits_[i].rows), i == 0 && !by_clients);
    std::vector<std::string> problems;
    if (const std::optional<Evaluation> evaluation = stepper_.evaluate_clients(problems))
      take("clients", *evaluation, by_clients);
    for (const std::string& problem : problems) tell(event::Warned{problem});
    return has_best;
  }

  double watched(const Evaluation& evaluation) const {
    const auto metric = std::ranges::find(evaluation.metrics, run_.train.best_by, &NamedNumber::name);
    return metric == evaluation.metrics.end() ? evaluation.loss : metric->value;
  }

  void write_checkpoint() {
    Checkpoint checkpoint{.state = {.step = step_,
                                    .seconds = training_.seconds(),
                                    .best = best_.state(),
                                    .blas = set_up_blas().kernels,
                                    .run = run_.resolved->dump()},
                          .arrays = {}};
    stepper_.save(checkpoint.arrays);
    if (!checkpoints_) return;
    checkpoint.of_clients = stepper_.save_clients();
    training_.result.last_checkpoint = checkpoints_->write(checkpoint);
    tell(event::CheckpointWritten{.step = step_, .path = training_.result.last_checkpoint.string()});
  }

  Training& training_;
  const Run& run_;
  Stepper& stepper_;
  std::vector<Split> splits_;
  std::optional<CheckpointFolder> checkpoints_;  // on rank 0
  BestSoFar best_;
  SpanGathering spans_;
  Calendar calendar_;
  std::int64_t step_;
};

}  // namespace

void run_steps(Training& training, Stepper& stepper) {
  if (training.checkpoint) {
    try {
      // There is none of them where several processes share what one has read.
      if (const auto& file = training.checkpoint->file; !file.empty())
        read_clients(file, [&](const auto& layout, auto bytes) { stepper.restore_client(layout, bytes); });
      stepper.restore(training.checkpoint->arrays);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("the checkpoint is not of this run: {}", error.what()));
    }
    training.checkpoint->arrays = {};
  }
  start(training, {.engine = stepper.describe(), .notes = stepper.notes(), .warnings = stepper.warnings()});
  StepLoop(training, stepper).run();
}

}  // namespace tutti::detail
