// Holds the parameters that several workers train, each at its own pace: a worker pulls them, computes gradients, and
// pushes these.
//
//   ParameterServer server(Sgd{.lr = 0.1}, 4, {.consistency = strategy::Consistency::bounded_staleness});
//   server.set_model_parameters(parameters);
//   // on each worker's thread:
//   while (has_rows()) {
//     const ModelSnapshot now = server.pull(worker);          // waits while it is too far ahead
//     server.push(worker, gradients_of(*now.parameters), {.base = now});
//   }
//   server.leave(worker);                                     // nobody waits for it from now on
//
// How far workers may be apart is its consistency:
//
// - synchronous: a round takes gradients of everybody who is there, and the model changes by their weighted mean.
//   Whoever comes first, the bits are the same.
// - bounded_staleness: each worker's gradients change the model by themselves. A worker that has pushed more than
//   max_staleness times more often than the slowest one waits before it gets parameters, and before it changes them.
// - asynchronous: the same, and nobody waits.
//
// Workers that share parameters without any version have SharedParameters (coordinate/shared_parameters.hpp). A worker
// that dies holds nobody back for longer than the heartbeat.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/gradient_updates.hpp>
#include <tutti/coordinate/main_model.hpp>
#include <tutti/coordinate/update_rule.hpp>
#include <tutti/strategy/data_parallel.hpp>

namespace tutti {

struct ParameterServerOptions {
  // lock_free is refused.
  strategy::Consistency consistency = strategy::Consistency::asynchronous;
  std::int64_t max_staleness = 4;  // of bounded_staleness
  GradientChangeMode mode = GradientChangeMode::descent;
  StalenessOptions staleness = {};
  // A worker that others wait for, and that has not called for so long, leaves by itself. Where nobody waits for it, it
  // may take all the time it wants.
  Duration heartbeat = std::chrono::seconds(30);
  Duration deadline = kDefaultDeadline;  // for a worker that is there, and slow
};

// Any thread may call any of these. A worker is one of 0, 1, ..., workers - 1; all are there at the beginning.
//
// Every call that names a worker refuses one that cannot be with a UsageError, and, but for join() and leave(), one
// that has left: with a UsageError where it left itself, an Error where it was silent.
class ParameterServer {
 public:
  // A UsageError for options that cannot be.
  ParameterServer(const OptimizerRule& rule, int workers, ParameterServerOptions options = {});
  ParameterServer(std::unique_ptr<UpdateRule> rule, int workers, ParameterServerOptions options = {});
  // Nobody may be within a call. Gradients of a round that is not complete are dropped.
  ~ParameterServer();
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;

  // As of DistributedGradientsCoordinator. Heartbeats count from the first model on.
  void set_parameters(GradientChangeMode mode);
  void set_rate_factor(double factor);
  void set_model_parameters(ParameterSet parameters);
  void set_model_parameters(std::shared_ptr<const ParameterSet> parameters);
  ParameterSet get_model_parameters() const;
  ModelSnapshot snapshot() const;
  std::int64_t version() const;

  // The parameters, for this worker's next gradients. Synchronous: when the round of its last gradients is through.
  // Bounded: when it is no more than max_staleness clocks ahead of the slowest worker that is there; what any of them
  // has pushed until that many clocks before is in it. A PeerError that names the slowest where that takes longer than
  // the deadline; what the round of its last gradients failed with. A UsageError where there are no parameters.
  ModelSnapshot pull(int worker);

  // A clock of this worker: gradients of the whole model. Synchronous: with those of the last worker that is there they
  // change the model by their mean, weighted by `weight`, at the largest of their rates; whoever pushes once more
  // before the round is through waits for it, as pull() does. Bounded: they change the model when the worker is no more
  // than max_staleness clocks ahead of the slowest that is there, which it waits for as pull() does; who has pulled
  // since its last push never waits. So clocks() of those who are there are never more than max_staleness + 1 apart.
  // Asynchronous: they change the model now. Both times their weight. A UsageError for gradients that are not of this
  // model or not finite, for weights and rates that numbers of its types cannot be multiplied by, and where synchronous
  // for a weight below 0: nothing is touched. What the rule throws: these gradients are gone, in a synchronous round
  // those of everybody, who are told by their next pull or push, and it does nothing else; the model is as it was.
  void push(int worker, std::shared_ptr<const ParameterSet> gradients, const GradientOrigin& origin = {});
  void push(int worker, ParameterSet gradients, const GradientOrigin& origin = {});

  // A sign of life, for who computes longer than the heartbeat; pull and push are signs, too.
  void beat(int worker);
  // Nobody waits for it from now on. What it has pushed counts. Nothing where it has left.
  void leave(int worker);
  // Comes back, at the slowest worker's clock. Where it has not left it is a sign of life.
  void join(int worker);
  // Whether it is there; one that was silent for too long is not.
  bool is_there(int worker) const;

  // By worker: how often it has pushed, but for one that came back.
  std::vector<std::int64_t> clocks() const;
  // How old gradients were when they changed the model; 0, where it was not said of what they are.
  StalenessCounts staleness() const;

  // For checkpoints: the model under its own names, and under names that begin with "server/" what the next change
  // depends on, and the clocks; one that has left gets that of the slowest, as by join(). What is pushed in a
  // synchronous round that is not complete is not in it. Restoring comes after set_model_parameters(), while no worker
  // is within a call; clocks of another number of workers begin anew, and those that are farther apart than
  // bounded_staleness lets them be are brought together. A UsageError, and nothing is changed, for what is of another
  // model or rule; Restored::what_fits is for another optimizer.
  void save(ParameterSet& arrays) const;
  void restore(const ParameterSet& arrays, Restored what = Restored::all);

 private:
  class Inside;

  std::unique_ptr<Inside> inside_;
};

}  // namespace tutti
