// Holds the main model's parameters and applies gradients as they arrive, from any number of threads.
//
//   DistributedGradientsCoordinator coordinator(Adam{.lr = 1e-3});
//   coordinator.set_model_parameters(parameters);
//   CoordinatorRun run = coordinator.start();
//   // on each worker's thread:
//   const ModelSnapshot now = coordinator.snapshot();                        // copies nothing
//   coordinator.add_gradients(gradients_of(*now.parameters), {.base = now});
//   // in the end:
//   coordinator.stop();                                                      // what was added is applied first
//   const ParameterSet learnt = coordinator.get_model_parameters();
//
// Gradients wait in a queue of bounded length, and a thread applies them in their order; nothing that was taken is
// lost, and nothing applied twice. Gradients that do not fit, or are not finite, are refused to their sender, and touch
// nothing. What they make of the model is not looked at: a step that is too large for the numbers of its type makes
// it infinite. What gradients do to the parameters is the rule's: an optimizer, or an UpdateRule of one's own.
// Workers that must not run too far ahead of each other have a ParameterServer (coordinate/parameter_server.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tutti/base/array.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/coordinator_run.hpp>
#include <tutti/coordinate/gradient_updates.hpp>
#include <tutti/coordinate/main_model.hpp>
#include <tutti/coordinate/update_rule.hpp>

namespace tutti {

// What becomes of gradients where the queue is full.
enum class WhenFull {
  block,   // the sender waits for room
  refuse,  // an Error at once
  merge,  // they are added to those that came last, and change the model together, as old as the oldest; an Error where
          // the sum would be infinite
};

struct GradientsCoordinatorOptions {
  GradientChangeMode mode = GradientChangeMode::descent;
  std::size_t capacity = 64;  // of the queue
  WhenFull when_full = WhenFull::block;
  // For room in the queue, whether it runs or not; for stop(); and in the end for gradients that are being applied.
  Duration deadline = kDefaultDeadline;
  StalenessOptions staleness = {};
};

// Any thread may call any of these.
class DistributedGradientsCoordinator {
 public:
  // A UsageError for options that cannot be. Whatever the rule remembers is what it starts with.
  explicit DistributedGradientsCoordinator(const OptimizerRule& rule, GradientsCoordinatorOptions options = {});
  explicit DistributedGradientsCoordinator(std::unique_ptr<UpdateRule> rule, GradientsCoordinatorOptions options = {});
  // Gradients that still wait are dropped: stop() applies them. The run ends with an Error that says how many; who
  // waits for room gets one, too. A rule that hangs for longer than the deadline is left to itself.
  ~DistributedGradientsCoordinator();
  DistributedGradientsCoordinator(const DistributedGradientsCoordinator&) = delete;
  DistributedGradientsCoordinator& operator=(const DistributedGradientsCoordinator&) = delete;

  // Which way gradients change parameters, from the next ones that are applied on.
  void set_parameters(GradientChangeMode mode);
  // What the learning rate is multiplied by, from the next ones on, as a schedule says. A UsageError below 0, and where
  // the rate would be none that numbers of the model's types can be multiplied by.
  void set_rate_factor(double factor);

  // The model: the first one fixes names, shapes and types; later ones leave what the rule remembers as it is. A set
  // that is shared is not copied, and nobody may change it any more. A UsageError, and nothing is changed, for another
  // model and for numbers that are not finite.
  void set_model_parameters(ParameterSet parameters);
  void set_model_parameters(std::shared_ptr<const ParameterSet> parameters);
  // Of one whole version: a copy, or without one what nobody changes any more. Nothing is in it where there are none.
  ParameterSet get_model_parameters() const;
  ModelSnapshot snapshot() const;
  // How often the model has changed.
  std::int64_t version() const;

  // Gradients of the whole model, or of the only array that it has. They may be added before start(). A UsageError for
  // those that are not of this model or not finite, and for a weight or a rate that numbers of the model's types cannot
  // be multiplied by; an Error where the queue is full, as the options say, and at once
  // where a full queue stays full because the run has failed. Where the queue is full and nothing runs, before start()
  // or after stop(), a sender waits for the whole deadline. Those that are shared are not copied, and nobody may change
  // them any more; those in another order than the model's are.
  void add_gradients(std::shared_ptr<const ParameterSet> gradients, const GradientOrigin& origin = {});
  void add_gradients(ParameterSet gradients, const GradientOrigin& origin = {});
  void add_gradients(ConstArray gradients, const GradientOrigin& origin = {});

  // A UsageError where there are no parameters, or it was started and has not stopped. Where a rule throws, the run
  // ends with it; its gradients are gone, the model is as it was before them, and others wait for the next start.
  CoordinatorRun start();
  // Applies what was added before, and returns when that is done; what is added meanwhile may wait for the next start.
  // Nothing where it is not running. Rethrows what the run ended with.
  void stop();

  // Those that wait are dropped; returns how many.
  std::size_t clear_gradients();
  // How many sets of gradients were added and are not applied yet.
  std::size_t pending() const;
  // How old gradients were when they were applied; 0, where it was not said of what they are.
  StalenessCounts staleness() const;

  // For checkpoints: the model under its own names, and under names that begin with "coordinator/" what the next change
  // depends on, the mode and the rate's factor included. What is pending is not in it. Restoring comes after
  // set_model_parameters(), and leaves what is pending, which then changes what was restored: clear_gradients() drops
  // it. A UsageError, and nothing is changed, for what is of another model or rule.
  void save(ParameterSet& arrays) const;
  void restore(const ParameterSet& arrays);

 private:
  struct Parts;

  std::unique_ptr<Parts> parts_;
};

}  // namespace tutti
