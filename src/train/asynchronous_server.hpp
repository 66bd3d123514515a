// A run whose replicas do not wait for each other: shards of batches are handed out as tasks to whoever has time, and
// gradients come back to the model that all of them train.
//
//   AsynchronousServer server(parameters, {.workers = 4, .strategy = strategy, .rule = rule});
//   server.begin(0, steps);
//   // each worker, on a thread of its own:
//   while (const auto work = server.next(worker)) server.done(worker, *work, gradients_of(*work));
//   server.leave(worker);
//   // the run:
//   AsynchronousStep step = server.take_step();      // as many tasks as a batch has shards, whichever they were
//   server.pause();                                  // nothing is on its way until go_on()
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/deadline.hpp>
#include <tutti/base/parameter_set.hpp>
#include <tutti/coordinate/gossip.hpp>
#include <tutti/coordinate/gradient_updates.hpp>
#include <tutti/coordinate/main_model.hpp>
#include <tutti/kernels/optimizer.hpp>
#include <tutti/nn/step_span.hpp>
#include <tutti/strategy/data_parallel.hpp>
#include <tutti/train/loss.hpp>

namespace tutti::detail {

struct AsynchronousServerOptions {
  int workers = 1;  // and as many shards has each batch
  strategy::ParameterServer strategy = {};
  std::shared_ptr<Gossip> gossip = {};  // in place of it: everybody has parameters of its own
  OptimizerRule rule = {};
  std::vector<double> rate_factors = {};  // of the learning rate, by array
  std::function<double(std::int64_t step)> rate_factor =
      {};  // what a schedule makes of the rate; 1 where there is none
  std::size_t metrics = 0;
  Duration deadline = kDefaultDeadline;  // for a task
};

// The rows of shard `number % workers` of the batch of step `number / workers`.
struct GradientWork {
  std::int64_t number = 0;
  ModelSnapshot parameters = {};
};

// What a worker made of it: the mean over its rows.
struct GradientReply {
  std::shared_ptr<const ParameterSet> gradients = {};  // null where it had no rows
  std::int64_t rows = 0;
  std::int64_t batch_rows = 0;  // of the whole batch
  double loss = 0;
  double weight = 0;
  std::vector<MetricSum> metrics = {};
  double seconds = 0;
  std::vector<StepSpan> spans = {};  // of its worker, since its last reply
  double bytes_exchanged = 0;        // between replicas, as far as it is known where they compute
};

// Of the rows of its batch. What these weigh is not known before all have come in, so rows count alike.
double share_of_batch(const GradientReply& reply);

struct AsynchronousStep {
  double loss = 0;
  std::int64_t rows = 0;
  double seconds = 0;  // of a task, on the average
  std::vector<StepSpan> spans = {};
  std::vector<MetricSum> metrics = {};
  StalenessCounts staleness = {};  // empty where there are no versions
  double bytes_exchanged = 0;
};

// What the workers train: with versions, or without, or everybody parameters of their own.
class AsynchronousModel {
 public:
  virtual ~AsynchronousModel() = default;
  // Waits while the worker is too far ahead of one that has not left, however long.
  virtual ModelSnapshot pull(int worker) = 0;
  // Returns how many bytes have gone between this worker and a server or others, on whichever processes they are.
  virtual double push(int worker, const GradientWork& work, const GradientReply& reply, double rate_factor) = 0;
  // How old gradients were, of all up to now; empty where there are no versions.
  virtual StalenessCounts staleness() const = 0;
  virtual void leave(int worker) = 0;
  // It has left, and what it had to itself is gone.
  virtual void lose(int /*worker*/) {}
  virtual ParameterSet parameters() const = 0;
  // While nobody pushes.
  virtual void save(ParameterSet& arrays) const = 0;
  virtual void restore(const ParameterSet& arrays) = 0;
};

std::unique_ptr<AsynchronousModel> make_gossip_model(std::shared_ptr<Gossip> gossip);
std::unique_ptr<AsynchronousModel> make_asynchronous_model(ParameterSet parameters,
                                                           const AsynchronousServerOptions& options);

// Any thread may call any of these.
class AsynchronousServer {
 public:
  AsynchronousServer(ParameterSet parameters, const AsynchronousServerOptions& options);

  // --- workers ---

  // Nothing once the run is over.
  std::optional<GradientWork> next(int worker);
  void done(int worker, const GradientWork& work, const GradientReply& reply);
  // It is gone: what it was at is another's.
  void leave(int worker);
  // So is what it had to itself.
  void lose(int worker);
  // Everybody's run ends with this.
  void fail(std::exception_ptr why);

  // --- the run ---

  // Steps from `first` to before `end`; those that a checkpoint has done already are left out.
  void begin(std::int64_t first, std::int64_t end);
  // Workers are few batches ahead of it.
  AsynchronousStep take_step();
  // Until nothing is on its way, and no batch is done in part.
  void pause();
  void go_on();
  // No more tasks.
  void end();

  ParameterSet parameters() const { return model_->parameters(); }
  // Between pause() and go_on().
  void save(ParameterSet& arrays) const;
  // Of a run that has taken so many steps.
  void restore(const ParameterSet& arrays, std::int64_t steps_taken);

 private:
  void wait(std::unique_lock<std::mutex>& lock, const char* what, const std::function<bool()>& until);
  bool has_task() const;
  std::optional<std::int64_t> take_task(int worker);
  void restore_replies(const ParameterSet& arrays, std::int64_t steps_ahead);
  void count_staleness() const;

  AsynchronousServerOptions options_;
  std::unique_ptr<AsynchronousModel> model_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  bool is_over_ = false;
  int pauses_ = 0;
  std::int64_t handed_out_ = 0;  // tasks, from the run's beginning
  std::int64_t end_ = 0;
  std::deque<std::int64_t> again_;            // of workers that are gone
  std::map<int, std::int64_t> on_their_way_;  // by worker: a task
  std::int64_t steps_taken_ = 0;
  std::deque<GradientReply> replies_;         // without their gradients
  mutable StalenessCounts staleness_before_;  // when it was counted last
  mutable StalenessCounts untold_staleness_;  // of what was in no step yet
};

}  // namespace tutti::detail
