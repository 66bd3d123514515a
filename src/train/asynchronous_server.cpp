#include "asynchronous_server.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/coordinate/parameter_server.hpp>
#include <tutti/coordinate/shared_parameters.hpp>
#include <tutti/coordinate/update_check.hpp>
#include <tutti/coordinate/update_rule.hpp>

namespace tutti::detail {
namespace {

// Batches of which all shards have come in; and of those that were in no step yet the numbers, a row for each shard,
// and how old gradients were, a row for each age.
constexpr const char* kBatches = "asynchronous/batches";
constexpr const char* kReplies = "asynchronous/replies";
constexpr const char* kStaleness = "asynchronous/staleness";
constexpr std::size_t kColumns = 5;  // of a reply, and two for each metric

// Who is told of a step is near what the replicas have done: as far as none of them ever waits for it, if it is quick.
constexpr std::int64_t kBatchesAhead = 2;

// Parameters to a worker, and as many gradients back.
double bytes_of_task(const ParameterSet& gradients) {
  double bytes = 0;
  for (const NamedArray& array : gradients) bytes += static_cast<double>(array.bytes().size());
  return 2 * bytes;
}

// --- with versions ---

class VersionedModel final : public AsynchronousModel {
 public:
  VersionedModel(ParameterSet parameters, const AsynchronousServerOptions& options)
      : server_(make_update_rule(options.rule, options.rate_factors), options.workers,
                {.consistency = options.strategy.consistency,
                 .max_staleness = options.strategy.max_staleness,
                 .staleness = {.rate_exponent = options.strategy.rate_exponent,
                               .delay_compensation = options.strategy.delay_compensation},
                 // Who is gone is told by its thread or its transport, and who is late by whoever waits for its task;
                 // and all are silent while the run pauses.
                 .heartbeat = kEndless,
                 .deadline = kEndless}) {
    server_.set_model_parameters(std::move(parameters));
  }

  ModelSnapshot pull(int worker) override { return server_.pull(worker); }

  double push(int worker, const GradientWork& work, const GradientReply& reply, double rate_factor) override {
    server_.push(worker, reply.gradients, {.base = work.parameters, .rate_factor = rate_factor});
    return bytes_of_task(*reply.gradients);
  }
  StalenessCounts staleness() const override { return server_.staleness(); }

  void leave(int worker) override { server_.leave(worker); }
  ParameterSet parameters() const override { return server_.get_model_parameters(); }
  void save(ParameterSet& arrays) const override { server_.save(arrays); }
  void restore(const ParameterSet& arrays) override { server_.restore(arrays, Restored::what_fits); }

 private:
  static constexpr Duration kEndless = Duration::max();

  ParameterServer server_;
};

// --- without: each worker has an optimizer of its own, and adds to the same numbers what it would change ---

std::string worker_prefix(std::size_t worker) { return fmt::format("worker/{}/", worker); }

void refuse_unless_finite(const ParameterSet& gradients) {
  for (const NamedArray& array : gradients) {
    if (!has_finite_numbers(array))
      throw UsageError(fmt::format("\"{}\" has gradients that are infinite or not a number", array.name()));
  }
}

// A worker that was not there takes after the first.
void restore_rule_of(std::size_t worker, UpdateRule& rule, const ParameterSet& arrays) {
  const bool was_there = arrays.find(worker_prefix(worker) + "step") != nullptr;
  restore_rule(rule, arrays, worker_prefix(was_there ? worker : 0), Restored::what_fits);
}

class LockFreeModel final : public AsynchronousModel {
 public:
  LockFreeModel(ParameterSet parameters, const AsynchronousServerOptions& options) : shared_(parameters) {
    for (int worker = 0; worker < options.workers; ++worker) {
      Seat& seat = seats_.emplace_back(Seat{make_update_rule(options.rule, options.rate_factors), parameters});
      seat.rule->prepare(parameters);
    }
  }

  ModelSnapshot pull(int) override { return {std::make_shared<const ParameterSet>(shared_.read()), 0}; }

  double push(int worker, const GradientWork&, const GradientReply& reply, double rate_factor) override {
    Seat& seat = seats_[static_cast<std::size_t>(worker)];
    refuse_unless_finite(*reply.gradients);
    shared_.read(seat.parameters);
    ParameterSet before = seat.parameters;
    seat.rule->apply(seat.parameters, *reply.gradients, {.rate_factor = rate_factor});
    for (std::size_t i = 0; i < before.size(); ++i) {
      dispatch(before[i].type(), [&]<typename T>(std::type_identity<T>) {
        if constexpr (std::is_floating_point_v<T>) {
          const std::span<T> change = before[i].values<T>();
          const std::span<const T> after = std::as_const(seat.parameters)[i].values<T>();
          for (std::size_t j = 0; j < change.size(); ++j) change[j] = after[j] - change[j];
        }
      });
    }
    shared_.add(before);
    return bytes_of_task(*reply.gradients);
  }
  StalenessCounts staleness() const override { return {}; }

  void leave(int) override {}
  ParameterSet parameters() const override { return shared_.read(); }

  void save(ParameterSet& arrays) const override {
    for (const NamedArray& array : shared_.read()) arrays.add(array.layout(), array.bytes());
    for (std::size_t worker = 0; worker < seats_.size(); ++worker)
      seats_[worker].rule->save(arrays, worker_prefix(worker));
  }

  void restore(const ParameterSet& arrays) override {
    ParameterSet now = shared_.read();
    copy_named(arrays, now);
    for (std::size_t worker = 0; worker < seats_.size(); ++worker)
      restore_rule_of(worker, *seats_[worker].rule, arrays);
    for (std::size_t i = 0; i < now.size(); ++i) {
      dispatch(now[i].type(), [&]<typename T>(std::type_identity<T>) {
        const SharedArray<T> its = shared_.array<T>(i);
        const std::span<const T> saved = std::as_const(now)[i].values<T>();
        for (std::size_t j = 0; j < saved.size(); ++j) its.store(j, saved[j]);
      });
    }
  }

 private:
  struct Seat {
    std::unique_ptr<UpdateRule> rule;
    ParameterSet parameters;
  };

  SharedParameters shared_;
  std::vector<Seat> seats_;
};

}  // namespace

std::unique_ptr<AsynchronousModel> make_asynchronous_model(ParameterSet parameters,
                                                           const AsynchronousServerOptions& options) {
  if (options.gossip) return make_gossip_model(options.gossip);
  if (options.strategy.consistency == strategy::Consistency::lock_free)
    return std::make_unique<LockFreeModel>(std::move(parameters), options);
  return std::make_unique<VersionedModel>(std::move(parameters), options);
}

double share_of_batch(const GradientReply& reply) {
  return static_cast<double>(reply.rows) / static_cast<double>(std::max<std::int64_t>(reply.batch_rows, 1));
}

AsynchronousServer::AsynchronousServer(ParameterSet parameters, const AsynchronousServerOptions& options)
    : options_(options), model_(make_asynchronous_model(std::move(parameters), options)) {}

// With the lock held. What failed elsewhere ends every wait. A worker that is late may have got its task a moment ago,
// or its task may be another's only since it was given up: so twice the deadline.
void AsynchronousServer::wait(std::unique_lock<std::mutex>& lock, const char* what,
                              const std::function<bool()>& until) {
  const Deadline deadline = Deadline::after(2 * options_.deadline);
  while (!failure_ && !until()) {
    if (deadline.passed()) throw Error(fmt::format("{} within {}", what, to_string(2 * options_.deadline)));
    changed_.wait_for(lock, std::min<Duration>(deadline.remaining(), std::chrono::hours(1)));
  }
  if (failure_) std::rethrow_exception(failure_);
}

// --- workers ---

bool AsynchronousServer::has_task() const {
  if (!again_.empty()) return true;
  const std::int64_t end = std::min(end_, (steps_taken_ + kBatchesAhead) * options_.workers);
  return handed_out_ < end && (pauses_ == 0 || handed_out_ % options_.workers != 0);
}

std::optional<std::int64_t> AsynchronousServer::take_task(int worker) {
  if (!has_task()) return std::nullopt;
  std::int64_t task = 0;
  if (again_.empty()) {
    task = handed_out_++;
  } else {
    task = again_.front();
    again_.pop_front();
  }
  on_their_way_[worker] = task;
  return task;
}

// A worker that waits for others has no task that these could wait for in turn.
std::optional<GradientWork> AsynchronousServer::next(int worker) {
  // The last tasks may come back from a worker that goes, so nobody leaves before they are through.
  const auto is_through = [this] {
    return is_over_ || (handed_out_ == end_ && again_.empty() && on_their_way_.empty());
  };
  while (true) {
    {
      std::unique_lock lock(mutex_);
      // However long the run pauses: it ends by end() or fail().
      changed_.wait(lock, [&] { return failure_ || is_through() || has_task(); });
      if (failure_) std::rethrow_exception(failure_);
      if (is_through()) return std::nullopt;
    }
    GradientWork work{.parameters = model_->pull(worker)};
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (const std::optional<std::int64_t> task = take_task(worker)) {
      work.number = *task;
      return work;
    }
  }
}

void AsynchronousServer::done(int worker, const GradientWork& work, const GradientReply& reply) {
  // Whoever is late, or ahead, has the rate of its own step; and its share of the batch counts.
  const double rate_factor =
      share_of_batch(reply) * (options_.rate_factor ? options_.rate_factor(work.number / options_.workers) : 1);
  const double bytes_exchanged = reply.gradients ? model_->push(worker, work, reply, rate_factor) : 0;
  const std::lock_guard lock(mutex_);
  on_their_way_.erase(worker);
  GradientReply numbers = reply;
  numbers.gradients = nullptr;
  numbers.bytes_exchanged += bytes_exchanged;
  replies_.push_back(std::move(numbers));
  changed_.notify_all();
}

void AsynchronousServer::leave(int worker) {
  model_->leave(worker);
  const std::lock_guard lock(mutex_);
  if (const auto its = on_their_way_.find(worker); its != on_their_way_.end()) {
    again_.push_back(its->second);
    on_their_way_.erase(its);
  }
  changed_.notify_all();
}

void AsynchronousServer::lose(int worker) {
  model_->lose(worker);
  leave(worker);
}

void AsynchronousServer::fail(std::exception_ptr why) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(why);
    changed_.notify_all();
  }
  // Nobody waits any more for one that does not come: what they throw now is not what has failed first.
  for (int worker = 0; worker < options_.workers; ++worker) model_->leave(worker);
}

// --- the run ---

void AsynchronousServer::begin(std::int64_t first, std::int64_t end) {
  const std::lock_guard lock(mutex_);
  steps_taken_ = first;
  handed_out_ = std::max(handed_out_, first * options_.workers);
  end_ = end * options_.workers;
  changed_.notify_all();
}

AsynchronousStep AsynchronousServer::take_step() {
  std::unique_lock lock(mutex_);
  const auto count = static_cast<std::size_t>(options_.workers);
  wait(lock, "no gradients came", [&] { return replies_.size() >= count || is_over_; });
  AsynchronousStep step;
  step.metrics.resize(options_.metrics);
  double weight = 0;
  for (std::size_t i = 0; i < count && !replies_.empty(); ++i) {
    const GradientReply& reply = replies_.front();
    step.rows += reply.rows;
    step.seconds += reply.seconds / static_cast<double>(count);
    step.bytes_exchanged += reply.bytes_exchanged;
    step.spans.insert(step.spans.end(), reply.spans.begin(), reply.spans.end());
    step.loss += reply.weight * reply.loss;
    weight += reply.weight;
    for (std::size_t m = 0; m < reply.metrics.size(); ++m) {
      step.metrics[m].sum += reply.metrics[m].sum;
      step.metrics[m].count += reply.metrics[m].count;
    }
    replies_.pop_front();
  }
  if (weight > 0) step.loss /= weight;
  count_staleness();
  step.staleness = std::exchange(untold_staleness_, {});
  ++steps_taken_;
  changed_.notify_all();
  return step;
}

// With the lock held.
void AsynchronousServer::count_staleness() const {
  StalenessCounts now = model_->staleness();
  for (const auto& [age, number] : now) {
    if (const std::int64_t more = number - staleness_before_[age]; more > 0) untold_staleness_[age] += more;
  }
  staleness_before_ = std::move(now);
}

void AsynchronousServer::pause() {
  std::unique_lock lock(mutex_);
  ++pauses_;
  wait(lock, "gradients are on their way that did not come",
       [&] { return on_their_way_.empty() && again_.empty() && (is_over_ || handed_out_ % options_.workers == 0); });
}

void AsynchronousServer::go_on() {
  const std::lock_guard lock(mutex_);
  --pauses_;
  changed_.notify_all();
}

void AsynchronousServer::end() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

void AsynchronousServer::save(ParameterSet& arrays) const {
  model_->save(arrays);
  const std::lock_guard lock(mutex_);
  const std::int64_t batches = handed_out_ / options_.workers;
  arrays.add(kBatches, {}, ConstArray(&batches, 1, DataType::int64));
  std::vector<double> numbers;
  for (const GradientReply& reply : replies_) {
    numbers.insert(numbers.end(),
                   {static_cast<double>(reply.rows), reply.loss, reply.weight, reply.seconds, reply.bytes_exchanged});
    for (const MetricSum& its : reply.metrics) numbers.insert(numbers.end(), {its.sum, its.count});
  }
  const auto columns = static_cast<std::int64_t>(kColumns + 2 * options_.metrics);
  arrays.add(kReplies, {static_cast<std::int64_t>(replies_.size()), columns}, numbers);
  count_staleness();
  std::vector<std::int64_t> ages;
  for (const auto& [age, number] : untold_staleness_) ages.insert(ages.end(), {age, number});
  arrays.add(kStaleness, {static_cast<std::int64_t>(untold_staleness_.size()), 2}, ages);
}

void AsynchronousServer::restore(const ParameterSet& arrays, std::int64_t steps_taken) {
  const NamedArray* batches = arrays.find(kBatches);
  if (batches == nullptr)
    throw UsageError("it is of replicas that take their steps together; --from begins with its weights");
  model_->restore(arrays);
  const std::lock_guard lock(mutex_);
  const std::int64_t done = std::max(batches->values<std::int64_t>()[0], steps_taken);
  handed_out_ = done * options_.workers;
  restore_replies(arrays, done - steps_taken);
  staleness_before_ = model_->staleness();
  untold_staleness_.clear();
  if (const NamedArray* ages = arrays.find(kStaleness)) {
    const std::span<const std::int64_t> numbers = ages->values<std::int64_t>();
    for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) untold_staleness_[numbers[i]] = numbers[i + 1];
  }
}

// With the lock held. With other workers, or metrics, what they told is one reply, and the rest of its batches have
// none.
void AsynchronousServer::restore_replies(const ParameterSet& arrays, std::int64_t steps_ahead) {
  replies_.clear();
  const NamedArray* saved = arrays.find(kReplies);
  const std::size_t columns = kColumns + 2 * options_.metrics;
  if (saved != nullptr && saved->shape().size() == 2 && saved->shape()[1] == static_cast<std::int64_t>(columns)) {
    const std::span<const double> numbers = saved->values<double>();
    for (std::size_t at = 0; at + columns <= numbers.size(); at += columns) {
      GradientReply reply{.rows = static_cast<std::int64_t>(numbers[at]),
                          .loss = numbers[at + 1],
                          .weight = numbers[at + 2],
                          .seconds = numbers[at + 3],
                          .bytes_exchanged = numbers[at + 4]};
      for (std::size_t m = at + kColumns; m < at + columns; m += 2)
        reply.metrics.push_back({numbers[m], numbers[m + 1]});
      replies_.push_back(std::move(reply));
    }
  }
  const auto wanted = static_cast<std::size_t>(steps_ahead * options_.workers);
  while (replies_.size() > wanted && wanted > 0) {
    const GradientReply last = std::move(replies_.back());
    replies_.pop_back();
    GradientReply& its = replies_.back();
    const double weight = its.weight + last.weight;
    its.loss = weight > 0 ? (its.weight * its.loss + last.weight * last.loss) / weight : 0;
    its.weight = weight;
    its.rows += last.rows;
    its.bytes_exchanged += last.bytes_exchanged;
    for (std::size_t m = 0; m < its.metrics.size(); ++m) {
      its.metrics[m].sum += last.metrics[m].sum;
      its.metrics[m].count += last.metrics[m].count;
    }
  }
  replies_.resize(wanted);
}

}  // namespace tutti::detail
