// Runs whose replicas do not wait for each other: each computes gradients of its rows, and a server applies them as
// they come. Rank 0 has the server and goes step by step; other processes have workers alone.
#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <tutti/base/chunk.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/strategy/mixing.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "asynchronous_server.hpp"
#include "gossip_model.hpp"
#include "gradient_lines.hpp"
#include "gradient_worker.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

const strategy::DataParallel& parallel_of(const Run& run) {
  return std::get<strategy::DataParallel>(run.graph.effective_strategy());
}

// Replicas of this process.
Slice replicas_here(const Run& run, const Communicator* world) {
  const auto replicas = static_cast<std::size_t>(parallel_of(run).num_replicas);
  return world == nullptr ? Slice{0, replicas} : chunk(replicas, world->size(), world->rank().value);
}

using SpanKind = event::SpanEnded::Kind;
using GradientWorkers = std::vector<std::unique_ptr<GradientWorker>>;

std::shared_ptr<GradientWorkers> make_workers(const Training& training) {
  auto workers = std::make_shared<GradientWorkers>();
  const Run& run = *training.run;
  const Slice here = replicas_here(run, training.options.world);
  for (std::size_t replica = here.first; replica < here.end(); ++replica) {
    const GradientWorkerOptions options{.replica = static_cast<int>(replica),
                                        .shards = static_cast<int>(parallel_of(run).num_replicas)};
    workers->push_back(std::make_unique<GradientWorker>(
        training.run, made_net(run, training.weights, training.options.from), training.data.train, options));
  }
  return workers;
}

// What the schedule makes of the learning rate.
std::function<double(std::int64_t)> rate_of(const Training& training) {
  return [run = training.run, steps = training.steps, steps_per_epoch = training.steps_per_epoch](std::int64_t step) {
    return rate_factor(run->schedule, {.step = step, .steps = steps, .steps_per_epoch = steps_per_epoch});
  };
}

// 0, 1, 2 to 3, 4 to 7, ...
std::string staleness_name(std::int64_t age) {
  if (age < 2) return fmt::format("staleness_{}", age);
  const auto first = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(age)));
  return fmt::format("staleness_{}_to_{}", first, 2 * first - 1);
}

class AsynchronousStepper final : public Stepper {
 public:
  explicit AsynchronousStepper(const Training& training)
      : training_(&training),
        run_(training.run),
        world_(training.options.world),
        first_step_(training.first_step()),
        steps_(training.steps),
        net_(made_net(*run_, training.weights, training.options.from)),
        state_(std::make_shared<State>()),
        evaluator_(run_, {.threads = static_cast<int>(replicas_here(*run_, world_).count)}) {
    set_up_blas();
    keep_freed_memory();
    state_->workers = make_workers(training);
    TrainedParameters trained = trained_parameters(*run_, *net_);
    gossip_ = make_gossip(*run_, trained, world_);
    state_->has_gossip = gossip_ != nullptr;
    const auto* server = std::get_if<strategy::ParameterServer>(&parallel_of(*run_).aggregation);
    state_->server = std::make_shared<AsynchronousServer>(
        values_of(trained),
        AsynchronousServerOptions{.workers = static_cast<int>(parallel_of(*run_).num_replicas),
                                  .strategy = server != nullptr ? *server : strategy::ParameterServer{},
                                  .gossip = gossip_,
                                  .rule = run_->optimizer,
                                  .rate_factors = std::move(trained.rate_factors),
                                  .rate_factor = rate_of(training),
                                  .metrics = run_->metrics.size(),
                                  .deadline = run_->train.deadline});
  }

  ~AsynchronousStepper() override {
    // Where it has not come to its end nobody waits for anybody any more.
    if (!has_finished_) state_->server->fail(std::make_exception_ptr(Error("the run has ended")));
    lines_.reset();
    if (gossip_) gossip_->end("rank 0 has ended the run");
    wait_for_workers();
  }

  std::string describe() const override {
    const std::int64_t replicas = parallel_of(*run_).num_replicas;
    return fmt::format("{} {}{} {}{}", replicas, replicas == 1 ? "replica" : "replicas",
                       world_ == nullptr ? "" : fmt::format(" on {} processes", world_->size()), what_they_do(),
                       bits_depend_on_timing(*run_) ? "; the bits depend on who is faster" : "");
  }

  void begin(std::int64_t steps_taken) override {
    if (gossip_ && world_ != nullptr) gossip_->connect(world_->transport());
    taken_ = steps_taken;
    state_->server->begin(steps_taken, steps_);
    for (std::size_t worker = 0; worker < state_->workers->size(); ++worker) {
      // One that computes for longer than anybody waits keeps what it needs.
      std::thread([state = state_, worker = static_cast<int>(worker)] { state->work(worker); }).detach();
      const std::lock_guard lock(state_->mutex);
      ++state_->started;
    }
    if (world_ == nullptr) return;
    GradientLinesOptions options{.replicas = static_cast<int>(parallel_of(*run_).num_replicas),
                                 .began = training_->began,
                                 .deadline = run_->train.deadline};
    // So that who is lost for one conversation is lost for both.
    if (gossip_) options.pair = [this](int process) { return gossip_->pair(process); };
    lines_.emplace(*world_, state_->server, options);
  }

  // Each gradient is applied at the rate of its own step; this is for whoever is told.
  double set_rate(double factor) override { return torch_options(run_->optimizer)->get_lr() * factor; }

  StepResult step(bool is_interrupted) override {
    pause_.reset();
    AsynchronousStep its = state_->server->take_step();
    ++taken_;
    StepResult result{.loss = its.loss, .rows = its.rows, .spans = std::move(its.spans)};
    result.times.compute = its.seconds;
    for (std::size_t m = 0; m < run_->metrics.size(); ++m)
      result.metrics.push_back({run_->metrics[m].name, value_of(run_->metrics[m].metric, its.metrics[m])});
    for (const auto& [age, count] : its.staleness) {
      const std::string name = staleness_name(age);
      const auto same = std::ranges::find(result.counts, name, &NamedNumber::name);
      if (same == result.counts.end())
        result.counts.push_back({name, static_cast<double>(count)});
      else
        same->value += static_cast<double>(count);
    }
    result.counts.push_back({"bytes_exchanged", its.bytes_exchanged});
    if (gossip_) result.problems = gossip_->take_problems();
    result.is_interrupted = is_interrupted;
    if (lines_) {
      result.is_interrupted |= lines_->is_interrupted();
      std::ranges::move(lines_->take_problems(), std::back_inserter(result.problems));
    }
    return result;
  }

  // All evaluations and checkpoints of a step are of one whole state, with the cores that the replicas leave free
  // meanwhile.
  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    pause();
    return evaluator_.evaluate(net_, rows);
  }

  void save(ParameterSet& arrays) override {
    pause();
    state_->server->save(arrays);
    ParameterSet all;
    add_module(all, *net_);
    for (const NamedArray& array : all) {
      if (arrays.find(array.name()) == nullptr) arrays.add(array.layout(), array.bytes());
    }
  }

  void restore(const ParameterSet& arrays) override {
    state_->server->restore(arrays, first_step_);
    fill_module(arrays, *net_);
    for (const std::unique_ptr<GradientWorker>& worker : *state_->workers) worker->restore(arrays);
  }

  void finish(const RunEnd& end) {
    has_finished_ = true;
    state_->server->end();  // first, so that nobody begins anything
    pause_.reset();
    if (lines_) lines_->finish(end);
    wait_for_workers();
    if (gossip_) gossip_->finish();
  }

 private:
  // Until the next step.
  class Pause {
   public:
    explicit Pause(std::shared_ptr<AsynchronousServer> server) : server_(std::move(server)) { server_->pause(); }
    ~Pause() { server_->go_on(); }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    std::shared_ptr<AsynchronousServer> server_;
  };

  // What has failed by now would have failed the next step.
  void pause() {
    if (pause_) return;
    try {
      pause_.emplace(state_->server);
      fill_net();
    } catch (const PeerError&) {
      throw;
    } catch (...) {
      const std::string why = text_of(std::current_exception());
      throw Error(fmt::format("step {}: {}", taken_ + 1, why.substr(0, why.find('\n'))));
    }
  }

  struct State {
    void work(int worker) {
      try {
        use_one_thread();
        GradientWorker& its = *(*workers)[static_cast<std::size_t>(worker)];
        SpansOfTasks spans(worker);  // this process has the first replicas
        while (const std::optional<GradientWork> work = server->next(worker)) {
          spans.note(SpanKind::waiting, "wait");
          GradientReply reply = its.compute(work->number, *work->parameters.parameters);
          spans.give(reply);
          server->done(worker, *work, reply);
          spans.note(SpanKind::communication, has_gossip ? "meet" : "push");
        }
        server->leave(worker);
      } catch (...) {
        server->fail(std::current_exception());
      }
      const std::lock_guard lock(mutex);
      ++ended;
      changed.notify_all();
    }

    std::shared_ptr<AsynchronousServer> server;
    std::shared_ptr<GradientWorkers> workers;
    bool has_gossip = false;
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t started = 0;  // of the workers' threads
    std::size_t ended = 0;
  };

  void wait_for_workers() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, run_->train.deadline, [&] { return state_->ended == state_->started; });
  }

  std::string what_they_do() const {
    const strategy::GradientAggregation& aggregation = parallel_of(*run_).aggregation;
    const bool is_one = parallel_of(*run_).num_replicas == 1;
    if (const auto* decentralized = std::get_if<strategy::Decentralized>(&aggregation)) {
      return fmt::format(
          "with parameters of {} own; after each of its gradients a replica takes the mean with a neighbour in a "
          "topology {}: spectral gap {:.3g} for a gradient of each",
          is_one ? "its" : "their", strategy::topology_name(decentralized->topology),
          spectral_gap_of(*decentralized,
                          {.replicas = static_cast<int>(parallel_of(*run_).num_replicas), .seed = run_->seed}));
    }
    const auto& server = std::get<strategy::ParameterServer>(aggregation);
    const std::string sends = fmt::format("{} gradients to one that has the parameters; ", is_one ? "sends" : "send");
    if (server.consistency == strategy::Consistency::bounded_staleness)
      return fmt::format("{}nobody is more than {} steps ahead of the slowest", sends, server.max_staleness);
    if (server.consistency == strategy::Consistency::lock_free)
      return is_one ? "adds to the parameters, without locks" : "add to the same parameters, without locks";
    return sends + "nobody waits";
  }

  // With the running statistics of the first replica.
  void fill_net() {
    ParameterSet all = state_->server->parameters();
    for (const NamedArray& array : state_->workers->front()->buffers()) all.add(array.layout(), array.bytes());
    const torch::NoGradGuard no_gradients;
    auto parameters = net_->named_parameters();
    auto buffers = net_->named_buffers();
    for (const NamedArray& array : all) {
      torch::Tensor* parameter = parameters.find(array.name());
      copy_to_tensor(array, parameter != nullptr ? *parameter : buffers[array.name()]);
    }
  }

  const Training* training_;
  std::shared_ptr<const Run> run_;
  Communicator* world_;
  std::int64_t first_step_;
  std::int64_t steps_;
  std::int64_t taken_ = 0;
  std::shared_ptr<GraphModule> net_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Gossip> gossip_;  // null for a parameter server
  std::optional<GradientLines> lines_;
  Evaluator evaluator_;
  std::optional<Pause> pause_;  // from the first evaluation or checkpoint after a step
  bool has_finished_ = false;
};

// On the other ranks.
void serve_gradients(Training& training) {
  set_up_blas();
  keep_freed_memory();
  const Run& run = *training.run;
  const std::shared_ptr<GradientWorkers> workers = make_workers(training);
  if (training.checkpoint) {
    for (const std::unique_ptr<GradientWorker>& worker : *workers) worker->restore(training.checkpoint->arrays);
  }
  const std::shared_ptr<Gossip> gossip = make_gossip(
      run, trained_parameters(run, *made_net(run, training.weights, training.options.from)), training.options.world);
  start(training, {});
  const Slice here = replicas_here(run, training.options.world);
  const auto first = static_cast<int>(here.first);
  GradientWorkersOptions options{.first = first,
                                 .count = static_cast<int>(here.count),
                                 .compute =
                                     [workers](int worker, std::int64_t task, const ParameterSet& parameters) {
                                       return (*workers)[static_cast<std::size_t>(worker)]->compute(task, parameters);
                                     },
                                 .prepare_thread = use_one_thread,
                                 .is_interrupted = training.options.is_interrupted,
                                 .began = training.began,
                                 .tells_spans = training.options.trace,
                                 .deadline = run.train.deadline};
  if (gossip) {
    if (training.checkpoint) gossip->restore(std::exchange(training.checkpoint->arrays, {}), Restored::what_fits);
    gossip->connect(training.options.world->transport());
    options.pair = gossip->pair(0);
    // Its parameters are here, and nothing of them goes to rank 0.
    options.compute = [workers, gossip, first, shards = parallel_of(run).num_replicas, rate = rate_of(training)](
                          int worker, std::int64_t task, const ParameterSet&) {
      const int replica = first + worker;
      GradientReply reply = (*workers)[static_cast<std::size_t>(worker)]->compute(task, *gossip->parameters(replica));
      const auto computed = std::chrono::steady_clock::now();
      if (const auto gradients = std::exchange(reply.gradients, nullptr))
        reply.bytes_exchanged =
            learn_and_meet(*gossip, replica, *gradients, share_of_batch(reply) * rate(task / shards));
      reply.spans.push_back({replica, SpanKind::communication, "meet", computed, std::chrono::steady_clock::now()});
      return reply;
    };
  }
  const RunEnd end = work_for(*training.options.world, options);
  if (gossip) gossip->finish();
  training.result.reason = end.reason;
  training.result.step = end.step;
}

}  // namespace

std::unique_ptr<Stepper> make_asynchronous_stepper(const Training& training) {
  refuse_rows_alone(*training.run, training.data.train->size());
  return std::make_unique<AsynchronousStepper>(training);
}

void fit_asynchronously(Training& training) {
  training.goes_alone = true;
  if (!training.speaks()) return serve_gradients(training);
  const std::unique_ptr<Stepper> stepper = make_asynchronous_stepper(training);
  run_steps(training, *stepper);
  static_cast<AsynchronousStepper&>(*stepper).finish({.reason = training.result.reason, .step = training.result.step});
}

}  // namespace tutti::detail
