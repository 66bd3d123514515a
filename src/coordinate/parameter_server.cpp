#include <tutti/coordinate/parameter_server.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/base/error.hpp>

#include "gradient_applier.hpp"
#include "gradient_mean.hpp"

namespace tutti {

using strategy::Consistency;

class ParameterServer::Inside {
 public:
  Inside(std::unique_ptr<UpdateRule> rule, int workers, const ParameterServerOptions& its)
      : options(its), applier(std::move(rule), its.mode, its.staleness) {
    if (workers < 1) throw UsageError(fmt::format("expected at least one worker, found {}", workers));
    if (its.consistency == Consistency::lock_free)
      throw UsageError("consistency: parameters that are lock_free have no server: SharedParameters");
    if (its.max_staleness < 0)
      throw UsageError(fmt::format("max_staleness: expected a number from 0 on, found {}", its.max_staleness));
    if (its.heartbeat <= Duration::zero())
      throw UsageError(fmt::format("heartbeat: expected a time above 0, found {}", to_string(its.heartbeat)));
    workers_.resize(static_cast<std::size_t>(workers));
  }

  void take_model(const ParameterSet& parameters) {
    if (!is_synchronous()) return;
    for (const NamedArray& array : parameters) {
      if (!is_floating(array.type()))
        throw UsageError(fmt::format("\"{}\" is {}, which has no mean: a synchronous server has floating types",
                                     array.name(), to_string(array.type())));
    }
  }

  void begin_heartbeats() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_begun_, true)) return;
    for (Worker& worker : workers_) worker.last_sign = Clock::now();
  }

  ModelSnapshot pull(int worker) {
    if (applier.model().empty()) throw UsageError("there are no parameters yet");
    std::unique_lock lock(mutex_);
    const Call call(*this, lock, worker);
    wait_until_free(lock, worker);
    lock.unlock();
    return applier.model().snapshot();
  }

  void push(int worker, std::shared_ptr<const ParameterSet> values, const GradientOrigin& origin) {
    std::unique_lock lock(mutex_);
    const Call call(*this, lock, worker);
    lock.unlock();  // nobody waits while they are looked at
    detail::GoodGradients gradients = applier.good(std::move(values), origin);
    if (is_synchronous() && gradients.weight < 0)
      throw UsageError(fmt::format("expected a weight from 0 on, found {}", gradients.weight));
    if (!is_synchronous()) return push_now(lock, worker, gradients);
    lock.lock();
    wait_until_free(lock, worker);
    Worker& its = at(worker);
    its.pending = std::make_unique<detail::GoodGradients>(std::move(gradients));
    its.is_in_round = true;
    ++its.clock;
    finish_rounds(lock);
    throw_failure(its);
  }

  void beat(int worker) {
    std::unique_lock lock(mutex_);
    const Call call(*this, lock, worker);
  }

  void leave(int worker) {
    std::unique_lock lock(mutex_);
    Worker& its = at(worker);
    its.was_silent = false;
    if (!std::exchange(its.is_there, false)) return;
    changed_.notify_all();
    finish_rounds(lock);
  }

  void join(int worker) {
    const std::lock_guard lock(mutex_);
    Worker& its = at(worker);
    its.last_sign = Clock::now();
    if (its.is_there) return;
    if (const Worker* slowest = slowest_there()) its.clock = slowest->clock + (its.pending ? 1 : 0);
    its.is_there = true;
    its.was_silent = false;
  }

  bool is_there(int worker) {
    const std::lock_guard lock(mutex_);
    return at(worker).is_there;
  }

  std::vector<std::int64_t> clocks() {
    const std::lock_guard lock(mutex_);
    std::vector<std::int64_t> clocks;
    for (const Worker& worker : workers_) clocks.push_back(worker.clock);
    return clocks;
  }

  void save(ParameterSet& arrays) {
    const std::lock_guard turn(turns_);
    applier.save(arrays, kPrefix);
    const std::lock_guard lock(mutex_);
    const auto applied_of = [](const Worker& its) { return its.clock - (its.is_in_round ? 1 : 0); };
    std::vector<std::int64_t> applied;
    for (const Worker& worker : workers_) applied.push_back(applied_of(worker));
    // Whoever goes on from it has them all: one that has left comes back as by join(), and is not waited for.
    std::optional<std::int64_t> slowest;
    for (const Worker& its : workers_) {
      if (its.is_there) slowest = std::min(slowest.value_or(applied_of(its)), applied_of(its));
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (slowest && !workers_[i].is_there) applied[i] = *slowest;
    }
    arrays.add(kPrefix + "clocks", {static_cast<std::int64_t>(applied.size())}, applied);
  }

  void restore(const ParameterSet& arrays, Restored what) {
    const std::lock_guard turn(turns_);
    const std::span<const std::int64_t> clocks = arrays.at(kPrefix + "clocks").values<std::int64_t>();
    if (std::ranges::any_of(clocks, [](std::int64_t clock) { return clock < 0; }))
      throw UsageError(fmt::format("\"{}clocks\": expected numbers from 0 on", kPrefix));
    const std::lock_guard lock(mutex_);
    applier.restore(arrays, kPrefix, what);
    // As far apart as these may be: where another consistency let them go farther, nobody need wait until it is made
    // up.
    const std::int64_t slowest = clocks.empty() ? 0 : *std::ranges::min_element(clocks);
    const auto in_bounds = [&](std::int64_t clock) {
      const bool is_too_far =
          options.consistency == Consistency::bounded_staleness && clock - slowest - 1 > options.max_staleness;
      return is_too_far ? slowest + options.max_staleness + 1 : clock;
    };
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& its = workers_[i];
      its.clock = clocks.size() == workers_.size() ? in_bounds(clocks[i]) : 0;
      its.pending = nullptr;
      its.is_in_round = false;
      its.failure = nullptr;
      its.last_sign = Clock::now();
    }
    changed_.notify_all();
  }

  const ParameterServerOptions options;
  detail::GradientApplier applier;

 private:
  using Clock = Deadline::Clock;

  inline static const std::string kPrefix = "server/";

  struct Worker {
    std::int64_t clock = 0;
    std::int64_t next_clocks = 0;  // pushes that are being applied, each a clock more where the rule does not throw
    bool is_there = true;
    bool was_silent = false;  // which is why it is not there
    int calls = 0;            // that it is within
    Clock::time_point last_sign = {};
    std::unique_ptr<detail::GoodGradients> pending = {};  // in the round that is not complete
    bool is_in_round = false;                             // its gradients wait or are being applied
    std::exception_ptr failure = {};                      // of its last round, until it is told
  };

  // A worker is within a call: it is alive. Begins and ends with the lock held, or takes it.
  class Call {
   public:
    Call(Inside& server, std::unique_lock<std::mutex>& lock, int worker) : lock_(lock), its_(server.present(worker)) {
      ++its_.calls;
    }
    ~Call() {
      if (!lock_.owns_lock()) lock_.lock();
      --its_.calls;
      its_.last_sign = Clock::now();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    std::unique_lock<std::mutex>& lock_;
    Worker& its_;
  };

  bool is_synchronous() const { return options.consistency == Consistency::synchronous; }

  // Gradients change the model at once: where staleness is bounded, once the worker is not too far ahead.
  void push_now(std::unique_lock<std::mutex>& lock, int worker, const detail::GoodGradients& gradients) {
    lock.lock();
    wait_until_free(lock, worker);
    Worker& its = at(worker);
    ++its.next_clocks;
    lock.unlock();
    const std::lock_guard turn(turns_);
    std::exception_ptr failed;
    try {
      applier.apply(gradients);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();  // before it is anybody's turn: a checkpoint has the clocks of its model
    --its.next_clocks;
    if (!failed) ++its.clock;
    changed_.notify_all();
    if (failed) std::rethrow_exception(failed);
  }

  // --- with the lock held ---

  Worker& at(int worker) {
    if (worker < 0 || worker >= static_cast<int>(workers_.size()))
      throw UsageError(fmt::format("there is no worker {}: expected 0 to {}", worker, workers_.size() - 1));
    return workers_[static_cast<std::size_t>(worker)];
  }

  Worker& present(int worker) {
    Worker& its = at(worker);
    if (its.is_there) return its;
    if (its.was_silent)
      throw Error(
          fmt::format("worker {} was silent for longer than the heartbeat of {} while others waited for it, "
                      "and has left: join() brings it back",
                      worker, to_string(options.heartbeat)));
    throw UsageError(fmt::format("worker {} has left: expected join() first", worker));
  }

  const Worker* slowest_there() const {
    const Worker* slowest = nullptr;
    for (const Worker& its : workers_) {
      if (its.is_there && (slowest == nullptr || its.clock < slowest->clock)) slowest = &its;
    }
    return slowest;
  }

  bool is_too_far_ahead(const Worker& worker, const Worker& other) const {
    return worker.clock + worker.next_clocks - other.clock > options.max_staleness;
  }

  bool is_free(const Worker& worker) const {
    switch (options.consistency) {
      case Consistency::synchronous: return !worker.is_in_round;
      case Consistency::bounded_staleness: return !is_too_far_ahead(worker, *slowest_there());
      default: return true;
    }
  }

  // Whether a worker that is not free waits for this one.
  bool holds_back(const Worker& other, const Worker& worker) const {
    if (!other.is_there || &other == &worker) return false;
    if (is_synchronous()) return !is_applying_ && !other.pending;
    return is_too_far_ahead(worker, other);
  }

  // Those that hold it back leave where they were silent for too long. Returns how long the next one may still be.
  Duration drop_silent(const Worker& worker) {
    const Clock::time_point now = Clock::now();
    Duration left = options.heartbeat;
    for (Worker& other : workers_) {
      if (!holds_back(other, worker) || other.calls > 0) continue;
      const Duration silence = now - other.last_sign;
      if (silence <= options.heartbeat) {
        left = std::min(left, options.heartbeat - silence);
        continue;
      }
      other.is_there = false;
      other.was_silent = true;
      changed_.notify_all();
    }
    return std::max<Duration>(left, std::chrono::microseconds(10));
  }

  void wait_until_free(std::unique_lock<std::mutex>& lock, int worker) {
    Worker& its = at(worker);
    const Deadline deadline = Deadline::after(options.deadline);
    while (true) {
      (void)present(worker);  // somebody may have said that it leaves
      if (is_free(its)) break;
      const Duration next = drop_silent(its);
      finish_rounds(lock);
      if (is_free(its)) break;
      if (deadline.passed()) throw PeerError(late(worker));
      changed_.wait_for(lock, std::min({deadline.remaining(), next, Duration(std::chrono::hours(1))}));
    }
    throw_failure(its);
  }

  Failure late(int worker) {
    std::vector<Rank> others;
    std::vector<int> numbers;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (!holds_back(workers_[i], at(worker))) continue;
      others.push_back(Rank{static_cast<int>(i)});
      numbers.push_back(static_cast<int>(i));
    }
    const std::string what = numbers.empty()    ? "that its round is applied"
                             : is_synchronous() ? fmt::format("the gradients of worker {}", fmt::join(numbers, ", "))
                                                : fmt::format("worker {}, which is more than {} clocks behind",
                                                              fmt::join(numbers, ", "), options.max_staleness);
    return {.kind = FailureKind::late,
            .ranks = others,
            .message = fmt::format("worker {} has waited for {}, for {}", worker, what, to_string(options.deadline))};
  }

  static void throw_failure(Worker& its) {
    if (its.failure) std::rethrow_exception(std::exchange(its.failure, nullptr));
  }

  bool round_is_complete() const {
    return std::ranges::any_of(workers_, [](const Worker& its) { return its.pending != nullptr; }) &&
           std::ranges::all_of(workers_, [](const Worker& its) { return !its.is_there || its.pending; });
  }

  // Applies rounds that have become complete, if nobody else does; without the lock meanwhile.
  void finish_rounds(std::unique_lock<std::mutex>& lock) {
    while (is_synchronous() && !is_applying_ && round_is_complete()) {
      std::vector<Worker*> contributors;
      std::vector<detail::GoodGradients> gradients;  // in the order of workers
      for (Worker& its : workers_) {
        if (!its.pending) continue;
        contributors.push_back(&its);
        gradients.push_back(std::move(*its.pending));
        its.pending = nullptr;
      }
      is_applying_ = true;
      lock.unlock();
      std::exception_ptr failed;
      {
        const std::lock_guard turn(turns_);
        try {
          if (const auto mean = mean_.of(std::move(gradients))) applier.apply(*mean);
        } catch (...) {
          failed = std::current_exception();
        }
        lock.lock();  // before it is anybody's turn: a checkpoint has the clocks of its model
        for (Worker* its : contributors) {
          its->is_in_round = false;
          its->failure = failed;
        }
        is_applying_ = false;
      }
      changed_.notify_all();
    }
  }

  std::mutex turns_;  // held by who changes the model or saves it; before the other one
  detail::GradientMean mean_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Worker> workers_;
  bool has_begun_ = false;
  bool is_applying_ = false;
};

ParameterServer::ParameterServer(const OptimizerRule& rule, int workers, ParameterServerOptions options)
    : ParameterServer(make_update_rule(rule), workers, options) {}

ParameterServer::ParameterServer(std::unique_ptr<UpdateRule> rule, int workers, ParameterServerOptions options)
    : inside_(std::make_unique<Inside>(std::move(rule), workers, options)) {}

ParameterServer::~ParameterServer() = default;

void ParameterServer::set_parameters(GradientChangeMode mode) { inside_->applier.set_mode(mode); }

void ParameterServer::set_rate_factor(double factor) { inside_->applier.set_rate_factor(factor); }

void ParameterServer::set_model_parameters(ParameterSet parameters) {
  inside_->take_model(parameters);
  inside_->applier.set_model(std::move(parameters));
  inside_->begin_heartbeats();
}

void ParameterServer::set_model_parameters(std::shared_ptr<const ParameterSet> parameters) {
  if (!parameters) throw UsageError("expected parameters, found none");
  inside_->take_model(*parameters);
  inside_->applier.set_model(std::move(parameters));
  inside_->begin_heartbeats();
}

ParameterSet ParameterServer::get_model_parameters() const {
  const ModelSnapshot now = snapshot();
  return now.parameters ? *now.parameters : ParameterSet();
}

ModelSnapshot ParameterServer::snapshot() const { return inside_->applier.model().snapshot(); }

std::int64_t ParameterServer::version() const { return inside_->applier.model().version(); }

ModelSnapshot ParameterServer::pull(int worker) { return inside_->pull(worker); }

void ParameterServer::push(int worker, std::shared_ptr<const ParameterSet> gradients, const GradientOrigin& origin) {
  inside_->push(worker, std::move(gradients), origin);
}

void ParameterServer::push(int worker, ParameterSet gradients, const GradientOrigin& origin) {
  push(worker, std::make_shared<const ParameterSet>(std::move(gradients)), origin);
}

void ParameterServer::beat(int worker) { inside_->beat(worker); }

void ParameterServer::leave(int worker) { inside_->leave(worker); }

void ParameterServer::join(int worker) { inside_->join(worker); }

bool ParameterServer::is_there(int worker) const { return inside_->is_there(worker); }

std::vector<std::int64_t> ParameterServer::clocks() const { return inside_->clocks(); }

StalenessCounts ParameterServer::staleness() const { return inside_->applier.staleness(); }

void ParameterServer::save(ParameterSet& arrays) const { inside_->save(arrays); }

void ParameterServer::restore(const ParameterSet& arrays, Restored what) { inside_->restore(arrays, what); }

}  // namespace tutti
