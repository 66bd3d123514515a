#include <tutti/coordinate/simulated_clients.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/base/random.hpp>
#include <tutti/coordinate/update_check.hpp>
#include <tutti/coordinate/update_codec.hpp>

#include "changes.hpp"

namespace tutti {
namespace {

constexpr std::uint64_t kBehaviourDraws = 0xbe4a71;
constexpr std::uint64_t kLots = 0x107;

// What a client keeps is one set, of what is its own and of what remains of compression.
constexpr std::string_view kOwnState = "state/";
constexpr std::string_view kRemains = "remains/";

ParameterSet part_named(const ParameterSet& all, std::string_view prefix) {
  ParameterSet part;
  for (const NamedArray& array : all) {
    if (!array.name().starts_with(prefix)) continue;
    ParameterLayout layout = array.layout();
    layout.name.erase(0, prefix.size());
    part.add(std::move(layout), array.bytes());
  }
  return part;
}

void add_named(ParameterSet& all, std::string_view prefix, const ParameterSet& part) {
  for (const NamedArray& array : part) {
    ParameterLayout layout = array.layout();
    layout.name.insert(0, prefix);
    all.add(std::move(layout), array.bytes());
  }
}

// In the type of each array; 0 where nothing has changed, be it infinite.
ParameterSet change_between(const ParameterSet& after, const ParameterSet& before) {
  ParameterSet change;
  for (std::size_t i = 0; i < after.size(); ++i) {
    change.add(after[i].layout());
    dispatch(after[i].type(), [&]<typename T>(std::type_identity<T>) {
      const std::span<const T> to = after[i].values<T>();
      const std::span<const T> from = before[i].values<T>();
      const std::span<T> difference = change[i].values<T>();
      for (std::size_t j = 0; j < to.size(); ++j) {
        if constexpr (sizeof(T) == 2)
          difference[j] = T::from_float(to[j].to_float() - from[j].to_float());
        else if constexpr (std::is_integral_v<T>)  // which may go round
          difference[j] = static_cast<T>(static_cast<std::make_unsigned_t<T>>(to[j]) -
                                         static_cast<std::make_unsigned_t<T>>(from[j]));
        else
          difference[j] = to[j] - from[j];
        if (detail::have_same_bits(to[j], from[j])) difference[j] = T{};
      }
    });
  }
  return change;
}

// Of what is trained, times the change that a client made.
void multiply_change(ParameterSet& after, const ParameterSet& before, double factor,
                     const std::vector<bool>& is_trained) {
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (!is_trained.empty() && !is_trained[i]) continue;
    dispatch(after[i].type(), [&]<typename T>(std::type_identity<T>) {
      const std::span<T> to = after[i].values<T>();
      const std::span<const T> from = before[i].values<T>();
      for (std::size_t j = 0; j < to.size(); ++j) {
        if (detail::have_same_bits(to[j], from[j])) continue;
        if constexpr (sizeof(T) == 2) {
          const float its = from[j].to_float();
          to[j] = T::from_float(its + static_cast<float>(factor) * (to[j].to_float() - its));
        } else if constexpr (!std::is_integral_v<T>) {  // counters are not hostile
          to[j] = static_cast<T>(from[j] + factor * (static_cast<double>(to[j]) - static_cast<double>(from[j])));
        }
      }
    });
  }
}

}  // namespace

struct SimulatedClients::Pending {
  enum class Outcome : std::uint8_t { answers, drops_out, fails };

  ClientTask task;
  double due = 0;
  std::int64_t order = 0;  // in which they were asked
  std::uint64_t lot = 0;   // of fits that are due at the same time, the lower comes first
  Outcome outcome = Outcome::answers;

  // Written by a thread until it is done.
  ClientReply reply = {};
  std::optional<ParameterSet> kept = {};  // by the client from then on, where that is something new
  bool is_done = false;

  Turn turn() const { return {due, task.kind == ClientTask::Kind::fit, lot, task.client, order}; }
  void carry_out(const SimulatedClientsOptions& options, const ParameterStore& kept_before);
  void take_fit(FitResult result, const SimulatedClientsOptions& options, ParameterSet& remains);
};

// What the threads share with whoever asks.
struct SimulatedClients::Shared {
  explicit Shared(SimulatedClientsOptions its) : options(std::move(its)), kept(options.folder) {}

  const SimulatedClientsOptions options;
  // By client. What one keeps changes when its fit is collected; its evaluations that were asked before were due
  // before.
  ParameterStore kept;
  std::mutex mutex;
  std::condition_variable has_work;
  std::condition_variable has_done;
  std::map<Turn, std::shared_ptr<Pending>> work;  // what is due first is computed first
  std::optional<Turn> wanted;                     // the answer that is waited for
  std::size_t uncollected = 0;                    // tasks that are computed, or have been and are not collected
  std::size_t threads_made = 0;
  std::string problem;  // of a thread that could not be prepared
  bool is_ending = false;
  bool is_late = false;  // somebody has missed the deadline
  std::size_t working = 0;
  std::vector<std::thread> threads;

  // Answers lie here until they are due: not many more than there are threads, but for the one that is waited for.
  bool may_begin() const {
    return !work.empty() && (uncollected < 2 * threads_made || (wanted && work.begin()->first == *wanted));
  }

  void prepare() noexcept {
    try {
      if (options.prepare_thread) options.prepare_thread();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      problem = error.what();
    } catch (...) {
      const std::lock_guard lock(mutex);
      problem = "a thread for clients could not be prepared";
    }
  }

  static void serve(const std::shared_ptr<Shared>& shared) {
    shared->prepare();
    std::unique_lock lock(shared->mutex);
    while (shared->problem.empty()) {
      shared->has_work.wait(lock, [&] { return shared->is_ending || shared->may_begin(); });
      if (shared->is_ending) break;
      ++shared->uncollected;
      const std::shared_ptr<Pending> pending = shared->work.begin()->second;
      shared->work.erase(shared->work.begin());
      lock.unlock();
      pending->carry_out(shared->options, shared->kept);
      lock.lock();
      pending->is_done = true;
      shared->has_done.notify_all();
    }
    --shared->working;
    shared->has_done.notify_all();
  }
};

void SimulatedClients::Pending::carry_out(const SimulatedClientsOptions& options, const ParameterStore& kept_before) {
  try {
    const std::unique_ptr<FederatedClient> client = options.make(task.client);
    if (!client) throw UsageError("nobody made it");
    ParameterSet before = kept_before.get(task.client);
    if (!before.empty()) client->restore(part_named(before, kOwnState));
    if (task.kind == ClientTask::Kind::evaluate) {
      ClientEvaluation evaluation = client->evaluate(*task.parameters);
      reply.rows = evaluation.rows;
      reply.loss = evaluation.loss;
      reply.metrics = std::move(evaluation.metrics);
      return;
    }
    if (before.empty()) add_named(before, kOwnState, client->state());
    FitResult result = client->fit(*task.parameters, task.instructions);
    ParameterSet kept_after;
    add_named(kept_after, kOwnState, client->state());
    const bool is_sound = stays_finite(result.parameters, *task.parameters) && stays_finite(kept_after, before);
    if (const ClientBehaviour its = options.behaviour_of(task.client);
        its.update_factor != 1 && task.parameters->same_layout(result.parameters))
      multiply_change(result.parameters, *task.parameters, its.update_factor, options.is_trained);
    ParameterSet remains = part_named(before, kRemains);
    take_fit(std::move(result), options, remains);
    add_named(kept_after, kRemains, remains);
    // What comes of a training that has gone astray does not stay.
    if (is_sound && !kept_after.empty()) kept = std::move(kept_after);
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    reply.failure = what.substr(0, what.find('\n'));
    if (reply.failure.empty()) reply.failure = "it failed, and did not say why";
  } catch (...) {
    reply.failure = "it failed, and did not say why";
  }
}

void SimulatedClients::Pending::take_fit(FitResult result, const SimulatedClientsOptions& options,
                                         ParameterSet& remains) {
  reply.rows = result.rows;
  reply.trained = result.trained > 0 ? result.trained : result.rows;
  reply.loss = result.loss;
  reply.metrics = std::move(result.metrics);
  // What the server refuses anyway goes as it is.
  ParameterSet change;
  if (!std::holds_alternative<NoCompression>(options.compression) && task.parameters->same_layout(result.parameters))
    change = change_between(result.parameters, *task.parameters);
  if (!change.empty() && std::ranges::all_of(change, has_finite_numbers)) {
    const std::vector<std::byte> message =
        encode_change(change, options.compression, {.remains = &remains, .is_trained = options.is_trained});
    reply.values = decode_change(message, *task.parameters);
    reply.is_change = true;
    reply.bytes = message.size();
  } else {
    reply.values = std::move(result.parameters);
    reply.bytes = reply.values.bytes();
  }
}

SimulatedClients::SimulatedClients(SimulatedClientsOptions options) {
  if (options.clients.empty()) throw UsageError("expected at least one client, found 0");
  if (!options.behaviour.empty() && options.behaviour.size() != options.clients.size())
    throw UsageError(fmt::format("expected a behaviour for each of {} clients, found {}", options.clients.size(),
                                 options.behaviour.size()));
  for (std::size_t i = 0; i < options.behaviour.size(); ++i) {
    const ClientBehaviour& its = options.behaviour[i];
    const auto is_likelihood = [](double number) { return number >= 0 && number <= 1; };
    if (!(its.fit_seconds >= 0) || std::isinf(its.fit_seconds) || !is_likelihood(its.dropout) ||
        !is_likelihood(its.failure) || !std::isfinite(its.update_factor))
      throw UsageError(
          fmt::format("client {} cannot behave like this: fit_seconds {}, dropout {}, failure {}, "
                      "update_factor {}",
                      i, its.fit_seconds, its.dropout, its.failure, its.update_factor));
  }
  validate(options.compression);
  if (std::holds_alternative<PowerSgd>(options.compression)) throw UsageError(kPowerSgdIsForReplicas);
  if (!options.make) throw UsageError("clients: expected a function that makes one");
  if (options.threads < 1) throw UsageError(fmt::format("expected at least one thread, found {}", options.threads));
  is_busy_.resize(options.clients.size());
  const std::size_t threads = std::min(static_cast<std::size_t>(options.threads), options.clients.size());
  shared_ = std::make_shared<Shared>(std::move(options));
  shared_->working = threads;
  shared_->threads_made = threads;
  for (std::size_t i = 0; i < threads; ++i) shared_->threads.emplace_back(Shared::serve, shared_);
}

SimulatedClients::~SimulatedClients() {
  std::unique_lock lock(shared_->mutex);
  shared_->is_ending = true;
  shared_->has_work.notify_all();
  const auto all_ended = [&] { return shared_->working == 0; };
  const bool have_ended =
      shared_->has_done.wait_for(lock, shared_->is_late ? Duration::zero() : shared_->options.deadline, all_ended);
  std::vector<std::thread> threads = std::move(shared_->threads);
  lock.unlock();
  for (std::thread& thread : threads) {
    if (have_ended)
      thread.join();
    else
      thread.detach();
  }
}

const std::vector<ClientInfo>& SimulatedClients::clients() const { return shared_->options.clients; }

bool SimulatedClients::is_free(std::int64_t client) const { return !is_busy_[static_cast<std::size_t>(client)]; }

Compression SimulatedClients::compression() const { return shared_->options.compression; }

std::uint64_t SimulatedClients::ask(ClientTask task) {
  const auto client = static_cast<std::size_t>(task.client);
  if (client >= is_busy_.size())
    throw UsageError(fmt::format("there is no client {}: expected 0 to {}", task.client, is_busy_.size() - 1));
  if (const std::vector<bool>& is_trained = shared_->options.is_trained;
      !is_trained.empty() && is_trained.size() != task.parameters->size())
    throw UsageError(fmt::format("is_trained: expected one for each of {} arrays, found {}", task.parameters->size(),
                                 is_trained.size()));
  const bool is_fit = task.kind == ClientTask::Kind::fit;
  if (is_fit && is_busy_[client])
    throw UsageError(fmt::format("client {} is asked for a fit while it has one to do", task.client));
  auto pending = std::make_shared<Pending>();
  pending->due = now_;
  pending->order = asked_++;
  if (is_fit) {
    const ClientBehaviour its = shared_->options.behaviour_of(task.client);
    RandomStream draws(
        {shared_->options.seed, kBehaviourDraws, client, static_cast<std::uint64_t>(task.instructions.draw)});
    double share = 1;
    if (draws.uniform() < its.dropout) {
      pending->outcome = Pending::Outcome::drops_out;
    } else if (draws.uniform() < its.failure) {
      pending->outcome = Pending::Outcome::fails;
      share = draws.uniform();
    }
    pending->due += share * its.fit_seconds;
  }
  const std::uint64_t bytes = task.parameters->bytes();
  pending->task = std::move(task);
  await(std::move(pending));
  return bytes;
}

void SimulatedClients::await(std::shared_ptr<Pending> pending) {
  if (pending->task.kind == ClientTask::Kind::fit) {
    is_busy_[static_cast<std::size_t>(pending->task.client)] = true;
    const ClientTask& task = pending->task;
    pending->lot = RandomStream({shared_->options.seed, kLots, static_cast<std::uint64_t>(task.client),
                                 static_cast<std::uint64_t>(task.instructions.draw)})();
  }
  const Turn turn = pending->turn();
  pending_.emplace(turn, pending);
  if (pending->outcome != Pending::Outcome::answers) {
    pending->reply.has_dropped_out = pending->outcome == Pending::Outcome::drops_out;
    pending->reply.failure = pending->reply.has_dropped_out ? "it has dropped out" : "it has failed on the way";
    pending->reply.is_staged = true;
    pending->is_done = true;
    return;
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->work.emplace(turn, std::move(pending));
  shared_->has_work.notify_one();
}

std::optional<ClientReply> SimulatedClients::next(double until) {
  if (pending_.empty()) return std::nullopt;
  const std::shared_ptr<Pending> pending = pending_.begin()->second;
  if (pending->due > until) {
    now_ = std::max(now_, until);
    return std::nullopt;
  }
  if (pending->outcome == Pending::Outcome::answers) {
    std::unique_lock lock(shared_->mutex);
    shared_->wanted = pending->turn();
    shared_->has_work.notify_all();
    const auto is_over = [&] { return pending->is_done || !shared_->problem.empty(); };
    const bool is_in_time = shared_->has_done.wait_for(lock, shared_->options.deadline, is_over);
    if (!shared_->problem.empty()) throw Error(shared_->problem);
    if (!is_in_time) {
      shared_->is_late = true;
      throw Error(fmt::format("client {} has not answered within {} s", pending->task.client,
                              std::chrono::duration<double>(shared_->options.deadline).count()));
    }
    --shared_->uncollected;
    shared_->wanted.reset();
    shared_->has_work.notify_all();
  }
  pending_.erase(pending_.begin());
  now_ = std::max(now_, pending->due);
  if (pending->task.kind == ClientTask::Kind::fit) {
    is_busy_[static_cast<std::size_t>(pending->task.client)] = false;
    if (pending->kept) shared_->kept.put(pending->task.client, *pending->kept);
  }
  ClientReply reply = std::move(pending->reply);
  reply.task = std::move(pending->task);
  return reply;
}

ParameterSet SimulatedClients::state_of(std::int64_t client) const { return shared_->kept.get(client); }

// --- checkpoints ---

namespace {

constexpr const char* kClock = "simulation/clock";
constexpr const char* kTasks = "simulation/tasks";
constexpr const char* kTaskNumbers = "simulation/task_numbers";
constexpr std::string_view kKeptBy = "client/";

constexpr std::size_t kTaskFields = 10;
constexpr std::size_t kTaskNumberFields = 3;

// Rows of numbers that are tasks of clients that are there.
void refuse_unless_tasks(const NamedArray& tasks, const NamedArray& numbers, std::int64_t clients) {
  const std::span<const std::int64_t> fields = tasks.values<std::int64_t>();
  const std::size_t count = fields.size() / kTaskFields;
  if (fields.size() % kTaskFields != 0 || numbers.values<double>().size() != count * kTaskNumberFields)
    throw UsageError(fmt::format("{} and {} are of different tasks", tasks.name(), numbers.name()));
  std::set<std::int64_t> fitting;
  for (std::size_t i = 0; i < count; ++i) {
    const auto its = fields.subspan(i * kTaskFields, kTaskFields);
    if (its[0] < 0 || its[0] >= clients)
      throw UsageError(fmt::format("client {} is at work, and there are {}", its[0], clients));
    if (its[1] < 0 || its[1] > 1 || its[5] < 0 || its[5] > 2)
      throw UsageError(fmt::format("{}: what client {} does is not known", tasks.name(), its[0]));
    if (its[1] == static_cast<std::int64_t>(ClientTask::Kind::fit) && !fitting.insert(its[0]).second)
      throw UsageError(fmt::format("{}: client {} is at work twice", tasks.name(), its[0]));
  }
}

std::string model_prefix(std::int64_t version) { return fmt::format("simulation/model/{}/", version); }

}  // namespace

void SimulatedClients::save(ParameterSet& arrays) const {
  const std::vector<double> clock = {now_, static_cast<double>(asked_)};
  arrays.add(kClock, {2}, clock);
  if (pending_.empty()) return;
  std::vector<std::int64_t> tasks;
  std::vector<double> numbers;
  std::map<std::int64_t, std::shared_ptr<const ParameterSet>> models;
  for (const auto& [turn, pending] : pending_) {
    const ClientTask& task = pending->task;
    tasks.insert(tasks.end(), {task.client, static_cast<std::int64_t>(task.kind), task.version, task.call,
                               task.instructions.round, static_cast<std::int64_t>(pending->outcome), pending->order,
                               task.instructions.draw, task.instructions.local.epochs, task.instructions.local.steps});
    numbers.insert(numbers.end(), {pending->due, task.instructions.rate_factor, task.instructions.mu});
    models.emplace(task.version, task.parameters);
  }
  const std::int64_t count = std::ssize(pending_);
  arrays.add(kTasks, {count, static_cast<std::int64_t>(kTaskFields)}, tasks);
  arrays.add(kTaskNumbers, {count, static_cast<std::int64_t>(kTaskNumberFields)}, numbers);
  for (const auto& [version, model] : models) add_named(arrays, model_prefix(version), *model);
}

std::vector<ArrayOnDemand> SimulatedClients::save_kept() const { return shared_->kept.on_demand(std::string(kKeptBy)); }

bool SimulatedClients::is_kept(const std::string& name) { return name.starts_with(kKeptBy); }

void SimulatedClients::restore_kept(const ParameterLayout& layout, std::span<const std::byte> bytes) {
  if (asked_ > 0) throw UsageError("clients that have been at work cannot go on from a checkpoint");
  std::int64_t client = -1;
  const std::string_view rest = std::string_view(layout.name).substr(kKeptBy.size());
  const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), client);
  if (problem != std::errc() || *end != '/' || client < 0 || client >= std::ssize(is_busy_))
    throw UsageError(fmt::format("\"{}\" is of a client that is not there", layout.name));
  const auto begin = static_cast<std::size_t>(end - rest.data()) + 1;
  shared_->kept.add(client, {std::string(rest.substr(begin)), layout.shape, layout.type}, bytes);
}

void SimulatedClients::restore(const ParameterSet& arrays, const ParameterSet& layout) {
  if (asked_ > 0) throw UsageError("clients that have been at work cannot go on from a checkpoint");
  const std::span<const double> clock = arrays.at(kClock).values<double>();
  if (clock.size() != 2) throw UsageError(fmt::format("{}: expected 2 numbers, found {}", kClock, clock.size()));
  const NamedArray* found = arrays.find(kTasks);
  if (found != nullptr) refuse_unless_tasks(*found, arrays.at(kTaskNumbers), std::ssize(is_busy_));
  now_ = clock[0];
  asked_ = static_cast<std::int64_t>(clock[1]);
  if (found == nullptr) return;
  const std::span<const std::int64_t> tasks = found->values<std::int64_t>();
  const std::span<const double> numbers = arrays.at(kTaskNumbers).values<double>();
  std::map<std::int64_t, std::shared_ptr<const ParameterSet>> models;
  for (std::size_t i = 0; i * kTaskFields < tasks.size(); ++i) {
    const auto its = tasks.subspan(i * kTaskFields, kTaskFields);
    const auto its_numbers = numbers.subspan(i * kTaskNumberFields, kTaskNumberFields);
    std::shared_ptr<const ParameterSet>& model = models[its[2]];
    if (!model) {
      ParameterSet read = part_named(arrays, model_prefix(its[2]));
      if (const std::string difference = layout.layout_difference(read); !difference.empty())
        throw UsageError(fmt::format("a model that clients train with does not fit: {}", difference));
      model = std::make_shared<const ParameterSet>(std::move(read));
    }
    auto pending = std::make_shared<Pending>();
    pending->task = {.client = its[0],
                     .kind = static_cast<ClientTask::Kind>(its[1]),
                     .version = its[2],
                     .call = its[3],
                     .parameters = model,
                     .instructions = {.round = its[4],
                                      .draw = its[7],
                                      .rate_factor = its_numbers[1],
                                      .mu = its_numbers[2],
                                      .local = {.epochs = its[8], .steps = its[9]}}};
    pending->outcome = static_cast<Pending::Outcome>(its[5]);
    pending->order = its[6];
    pending->due = its_numbers[0];
    await(std::move(pending));
  }
}

}  // namespace tutti
